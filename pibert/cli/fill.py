"""``pibert fill``: missing and spurious vectors of a recording put in by a pretrained model."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pibert.cli import options
from pibert.cli.terminal import progress_bar, say, show_json

if TYPE_CHECKING:
    from pibert.data.filling import FillReport
    from pibert.data.gaps import FillSettings
    from pibert.predictor import Predictor

_NOISE = 0.1
"""Accepted fluctuation, as a share of the velocity's deviation in the model's training data."""


@options.with_source
def fill(
    path: options.Source,
    model: Annotated[
        Path, typer.Option(help="A run folder with a pretrained model.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Write this file. .h5: PIBERT's own format; .nc: NetCDF; .pvd, .xdmf: ParaView.",
            show_default=False,
        ),
    ],
    flag_outliers: Annotated[
        bool, typer.Option(help="Also replace vectors that do not fit their neighbours.")
    ] = True,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Accepted fluctuation of the velocity, in its unit; a tenth of its deviation if "
            "not given. A lower one flags more vectors."
        ),
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Fill missing vectors and replace outliers with a pretrained model.

    All other values stay as they are, and OUT marks the filled ones: they are never scored or
    learned from. A picture beside OUT shows the frame that changed most.

    Example: pibert fill piv.h5 --model runs/pretrained --out filled.h5

    Example: pibert fill piv.h5 --model runs/pretrained --out filled.nc

    Example: pibert fill 'run/B*.txt' --model runs/pretrained --out filled.h5 --noise 0.02
    """
    import torch

    from pibert.data.filling import check_output, fill_recordings
    from pibert.predictor import load
    from pibert.report.filling import draw_filling

    options.require_file_name(out)
    if noise is not None and not flag_outliers:
        raise ValueError("--noise goes with --flag-outliers; without it no vector is flagged")
    if not overwrite:
        options.refuse_existing(path, out, out.with_suffix(".png"))
    recordings = source.open()
    check_output(out, recordings)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = _settings(load(model, device), model, flag_outliers, noise)
    console = Console(stderr=as_json)
    for remark in recordings.remarks:
        say(console, f"note: {remark}")
    columns = (TextColumn("{task.percentage:.0f} %"), BarColumn(), TimeRemainingColumn())
    with progress_bar(console, *columns) as progress:
        task = progress.add_task("filling", total=1.0)
        report = fill_recordings(
            recordings,
            out,
            settings,
            on_progress=lambda share: progress.update(task, completed=share),
            on_remark=lambda text: say(console, f"note: {text}"),
        )
    example = report.example
    picture = draw_filling(
        out.with_suffix(".png"), example, title=f"{example.name}, frame {example.frame}"
    )
    if as_json:
        kept = ("vectors", "missing", "flagged", "filled", "change")
        numbers = {name: getattr(report, name) for name in kept}
        return show_json({**numbers, "noise": settings.noise, "written": [str(out), str(picture)]})
    _tell(console, report, out, settings)
    say(console, f"Picture: {picture}")


def _settings(
    predictor: "Predictor", folder: Path, flags: bool, noise: float | None
) -> "FillSettings":
    from pibert.data.gaps import FillSettings

    if not predictor.card["trained"]["reconstruct"]:
        inside = folder / "pretraining"
        advice = (
            f"take its pretraining: --model {inside}"
            if (inside / "model.json").exists()
            else "pretrain one: pibert pretrain --config FILE --out RUN"
        )
        raise ValueError(f"{folder}: this model was not trained to fill gaps; {advice}")
    spec, stds = predictor.spec, predictor.normalizer.std
    if flags and spec.velocity is None and noise is None:
        flags = False  # there are no vectors to judge
    if flags and noise is None and spec.velocity is not None:
        noise = _NOISE * math.hypot(*(stds[i] for i in spec.velocity)) / math.sqrt(2)
    weights: dict[str, Any] = predictor.card.get("weights", {})
    return FillSettings(
        repair=predictor.fill,
        spec=spec,
        history=predictor.history,
        noise=noise if flags else None,
        provenance={"model": folder.resolve().name, "weights_sha256": weights.get("sha256")},
    )


def _tell(console: Console, report: "FillReport", out: Path, settings: "FillSettings") -> None:
    def share(count: int) -> str:
        return f"{count:,} ({count / max(1, report.vectors):.2%})"

    say(console, f"{report.vectors:,} vectors: {share(report.missing)} missing")
    if settings.noise is not None:
        say(console, f"{share(report.flagged)} flagged (noise {settings.noise:.3g})")
    if report.flagged:
        units = dict(zip(settings.spec.channels, settings.spec.units, strict=True))
        moved = ", ".join(
            f"{name} {rms:.3g}{'' if units[name] == '1' else ' ' + units[name]}, at most "
            f"{report.largest[name]:.3g}"
            for name, rms in report.change.items()
        )
        say(console, f"Flagged vectors moved by (rms) {moved}")
    left = report.missing + report.flagged - report.filled
    if left:
        say(console, f"note: {left:,} stay as they are, in frames without a sound vector")
    say(console, f"Wrote {out}: {share(report.filled)} filled.")
