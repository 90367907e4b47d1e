"""``pibert fill``: fill missing vectors and replace outliers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from pibert.cli import options
from pibert.cli.options import option
from pibert.cli.terminal import say, show_json, showing_progress
from pibert.data.writers import check_output, list_formats, targets_of

if TYPE_CHECKING:
    from pibert.data.filling import FillReport, FillSettings


@options.with_options
def fill(
    path: options.Source,
    out: Annotated[
        Path,
        option(
            f"Write this file. {list_formats()}.",
        ),
    ],
    source: options.SourceOptions,
    model: Annotated[
        Path | None,
        option("Use the pretrained model of this run folder. Default: thin-plate splines."),
    ] = None,
    flag_outliers: Annotated[
        bool, option("Also replace vectors that do not fit their neighbours.")
    ] = True,
    noise: Annotated[
        float | None,
        option(
            "Accept this fluctuation of the velocity, in its unit; a lower one flags more vectors. "
            "Default: a tenth of the velocity's standard deviation in the recording."
        ),
    ] = None,
    fill_masked: Annotated[
        bool,
        option("Also fill points that no frame knows, such as a shadow; else they stay empty."),
    ] = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Fill missing vectors and replace outliers.

    Uses a pretrained model, or without one thin-plate splines in each frame. All other values stay
    as they are, and OUT marks the filled ones: they are never scored or learned from. A picture
    beside OUT shows the frame with the most filled vectors.

    Example: pibert fill piv.h5 --out filled.h5

    Example: pibert fill piv.h5 --model runs/pretrained --out filled.h5

    Example: pibert fill piv.h5 --model runs/pretrained --out filled.nc

    Example: pibert fill 'run/B*.txt' --model runs/pretrained --out filled.h5 --noise 0.02
    """
    from pibert.data.filling import fill_recordings, thin_plate
    from pibert.report.filling import draw_filling

    options.require_file_name(out)
    if noise is not None and not flag_outliers:
        raise ValueError("--noise goes with --flag-outliers; without it no vector is flagged")
    if not overwrite:
        options.refuse_existing(path, *targets_of(out), out.with_suffix(".png"))
    recordings = source.open(path)
    check_output(out, recordings)
    how: dict[str, Any] = {
        "flag_outliers": flag_outliers,
        "noise": noise,
        "fill_masked": fill_masked,
    }
    settings = thin_plate(recordings, **how) if model is None else _of_model(model, **how)
    console = Console(stderr=as_json)
    for note in recordings.notes:
        say(console, f"Note: {note}")
    with showing_progress(console) as update:
        report = fill_recordings(
            recordings,
            out,
            settings,
            on_progress=update,
            on_note=lambda text: say(console, f"Note: {text}"),
        )
    example = report.example
    picture = draw_filling(
        out.with_suffix(".png"), example, title=f"{example.name}, frame {example.frame}"
    )
    if as_json:
        kept = ("vectors", "masked", "missing", "flagged", "filled", "change", "noise")
        numbers = {name: getattr(report, name) for name in kept}
        return show_json({**numbers, "written": [str(out), str(picture)]})
    _show(console, report, out, settings)
    say(console, f"Picture: {picture}")


def _of_model(model: Path, **how: Any) -> "FillSettings":
    import torch

    from pibert.inference import load
    from pibert.inference.filling import fill_settings

    predictor = load(model, "cuda" if torch.cuda.is_available() else "cpu")
    return fill_settings(predictor, model, **how)


def _show(console: Console, report: "FillReport", out: Path, settings: "FillSettings") -> None:
    def share(count: int) -> str:
        return f"{count:,} ({count / max(1, report.vectors):.2%})"

    say(console, f"{report.vectors:,} vectors: {share(report.missing)} missing")
    if report.masked:
        say(
            console,
            f"Note: {share(report.masked)} known in no frame (masked): they stay empty; "
            "--fill-masked fills them too",
        )
    if report.noise is not None:
        say(console, f"{share(report.flagged)} flagged (noise {report.noise:.3g})")
    if report.flagged:
        units = dict(zip(settings.spec.channels, settings.spec.units, strict=True))
        changes = ", ".join(
            f"{name} {rms:.3g}{'' if units[name] == '1' else ' ' + units[name]}, at most "
            f"{report.largest[name]:.3g}"
            for name, rms in report.change.items()
        )
        say(console, f"Flagged vectors changed by (rms) {changes}")
    if left := report.missing + report.flagged - report.filled:
        say(console, f"Note: {left:,} stay as they are, in frames without a valid vector")
    method = (settings.provenance or {}).get("method", "the model")
    say(console, f"Wrote {out}: {share(report.filled)} filled by {method}.")
