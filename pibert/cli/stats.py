"""``pibert stats``: statistics, spectra and modes of a recording."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from pibert.cli import options
from pibert.cli.options import option
from pibert.cli.terminal import say, show_json, show_table
from pibert.data.writers import WRITERS, name_formats, write_trajectories

if TYPE_CHECKING:
    from pibert.evaluation.flow_statistics import FlowStatistics

_SUMMARY = "summary.json"


@options.with_options
def stats(
    path: options.Source,
    source: options.SourceOptions,
    out: Annotated[
        Path | None,
        option("Write fields, tables (CSV) and pictures to this folder. Default: print only."),
    ] = None,
    trajectory: Annotated[
        str | None, option("Use this trajectory. Default: the first.", metavar="NAME|NUMBER")
    ] = None,
    probe: Annotated[
        list[str] | None,
        option(
            "Compute spectra at this point, in the file's coordinates. Repeatable. Default: points "
            "in the wake of a body, else 4 x 4 points of the field.",
            metavar="X,Y",
        ),
    ] = None,
    period: Annotated[
        float | None,
        option(
            "Average over phases of this period, in the unit of time (seconds if it is known). "
            "Default: that of the dominant frequency."
        ),
    ] = None,
    phases: Annotated[int, option("Average over this many phases.")] = 8,
    segment: Annotated[
        int | None,
        option("Divide the record in segments of this many frames, for spectra and SPOD."),
    ] = None,
    modes: Annotated[int, option("Write this many modes of each kind.", min=1)] = 6,
    rank: Annotated[int, option("Use this many POD modes for DMD.")] = 20,
    format_: Annotated[
        str, option("Write fields in this format.", "--format", metavar=name_formats())
    ] = "h5",
    figures: Annotated[str, option("Draw pictures in this format.", metavar="png|pdf|svg")] = "png",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Compute means, stresses, spectra and modes of a flow.

    Also phase averages. Filled vectors do not count in means and spectra. POD, SPOD and DMD need
    complete fields: fill gaps first with pibert fill.

    Example: pibert stats filled.h5 --out stats

    Example: pibert stats wake.h5 --out stats --period 0.21 --probe 0.02,0.01 --format nc
    """
    from pibert.cli.predict import choose_trajectory
    from pibert.evaluation.flow_statistics import StatsOptions, flow_statistics
    from pibert.notes import Notes

    options.choice("--format", f".{format_}", WRITERS)
    options.choice("--figures", figures, ("png", "pdf", "svg"))
    settings = StatsOptions(
        probes=tuple(_point(text) for text in probe or ()),
        period=period,
        phases=phases,
        segment=segment,
        rank=rank,
    )
    if out is not None:
        _check_folder(out, overwrite)
    recordings, notes = source.open(path), Notes()
    flow = choose_trajectory(recordings, trajectory, notes)
    console = Console(stderr=as_json)
    for note in (*recordings.notes, *map(str, notes)):
        say(console, f"Note: {note}")
    found = flow_statistics(flow, settings)
    written = [] if out is None else _write(out, found, modes, f".{format_}", figures)
    if as_json:
        return show_json({**found.summary(), "written": [str(file) for file in written]})
    _show(console, found)
    if out is not None:
        say(console, f"Wrote {out}: {', '.join(file.name for file in written)}")


def _point(text: str) -> tuple[float, float]:
    try:
        x, y = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"--probe takes X,Y such as 0.02,0.01, found {text!r}") from None
    return x, y


def _check_folder(out: Path, overwrite: bool) -> None:
    from pibert.data.partial import check_writable

    check_writable(out / _SUMMARY)
    if not out.exists() or not any(out.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(f"{out} exists; add --overwrite or choose another name")
    if not (out / _SUMMARY).is_file():
        raise FileExistsError(f"{out} holds other files; choose another folder")


def _write(out: Path, found: "FlowStatistics", modes: int, suffix: str, figures: str) -> list[Path]:
    """Write all files or none."""
    import json

    from pibert.evaluation.flow_statistics import fields_of, tables
    from pibert.report.flow_statistics import draw_statistics

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
        folder = Path(name) / out.name
        folder.mkdir()
        for title, (columns, values) in tables(found).items():
            lines = [",".join(columns)]
            lines += [",".join(f"{value:.9g}" for value in row) for row in values.tolist()]
            (folder / f"{title}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for title, recording in fields_of(found, modes).items():
            write_trajectories(folder / f"{title}{suffix}", [recording])
        draw_statistics(folder, found, figures)
        (folder / _SUMMARY).write_text(json.dumps(found.summary(), indent=1) + "\n")
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return sorted(file for file in out.iterdir() if file.is_file())


def _show(console: Console, found: "FlowStatistics") -> None:
    from pibert.evaluation.measure import velocity_unit

    numbers = found.summary()

    def text(value: float | None, form: str = ".4g") -> str:
        return "–" if value is None else format(value, form)

    say(
        console,
        f"{numbers['name']}: {numbers['frames']} frames, {numbers['measured_share']:.2%} of the "
        "points measured. Averages over the field:",
    )
    columns = ("channel", "unit", "mean", "rms", "error of the mean", "independent samples")
    rows = []
    for name, row in numbers["channels"].items():
        cells = [text(row[key]) for key in ("mean", "rms", "error_of_mean")]
        rows.append((name, row["unit"], *cells, text(row["independent_samples"], ".0f")))
    show_table(console, columns, rows)
    stresses = ", ".join(f"<{name}> {text(value)}" for name, value in numbers["stresses"].items())
    velocity = velocity_unit(found.spec)
    square = "" if velocity == "1" else f" ({velocity})²"
    measured = "all three" if len(found.velocity) > 2 else "both"
    say(
        console,
        f"Reynolds stresses {stresses}{square}; turbulent kinetic energy of {measured} "
        f"components {text(numbers['tke'])}{square}",
    )
    unit = numbers["units"]["frequency"]
    if numbers["dominant_frequency"] is not None:
        say(console, f"Dominant frequency {text(numbers['dominant_frequency'])} {unit}")
    if numbers["pod"] is not None:
        shares = ", ".join(f"{share:.1%}" for share in numbers["pod"][:6])
        say(console, f"POD: the first modes hold {shares} of the energy")
    if numbers["spod"] == []:
        say(console, "SPOD: no peak above the lowest frequency; record longer to see lower ones")
    for row in (numbers["spod"] or [])[:3]:
        say(
            console,
            f"SPOD: peak at {text(row['frequency'])} {unit}; its first mode holds "
            f"{row['first_mode_share']:.0%} of the energy at this frequency",
        )
    if numbers["dmd"]:
        amplitude = "amplitude" if velocity == "1" else f"amplitude [{velocity}]"
        names = (f"DMD frequency [{unit}]", f"growth rate [{unit}]", amplitude)
        keys = ("frequency", "growth", "amplitude")
        show_table(console, names, ([text(row[key]) for key in keys] for row in numbers["dmd"][:6]))
    for note in numbers["notes"]:
        say(console, f"Note: {note}")
