"""``pibert fill``: fill missing vectors and replace outliers with a pretrained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pibert.cli import options
from pibert.cli.terminal import progress_bar, say, show_json

if TYPE_CHECKING:
    from pibert.data.filling import FillReport, FillSettings


@options.with_source
def fill(
    path: options.Source,
    model: Annotated[
        Path, typer.Option(help="Use the pretrained model of this run folder.", show_default=False)
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
            help="Accept this fluctuation of the velocity, in its unit; a lower one flags more "
            "vectors. Default: a tenth of the velocity's standard deviation in training."
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
    from pibert.inference import load
    from pibert.inference.filling import fill_settings
    from pibert.report.filling import draw_filling

    options.require_file_name(out)
    if noise is not None and not flag_outliers:
        raise ValueError("--noise goes with --flag-outliers; without it no vector is flagged")
    if not overwrite:
        options.refuse_existing(path, out, out.with_suffix(".png"))
    recordings = source.open()
    check_output(out, recordings)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    predictor = load(model, device)
    settings = fill_settings(predictor, model, flag_outliers=flag_outliers, noise=noise)
    console = Console(stderr=as_json)
    for remark in recordings.notes:
        say(console, f"Note: {remark}")
    columns = (TextColumn("{task.percentage:.0f} %"), BarColumn(), TimeRemainingColumn())
    with progress_bar(console, *columns) as progress:
        task = progress.add_task("filling", total=1.0)
        report = fill_recordings(
            recordings,
            out,
            settings,
            on_progress=lambda share: progress.update(task, completed=share),
            on_note=lambda text: say(console, f"Note: {text}"),
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
        say(console, f"Note: {left:,} stay as they are, in frames without a sound vector")
    say(console, f"Wrote {out}: {share(report.filled)} filled.")
