"""Outputs of predictions: the options, and a writer for each file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pibert.data.writers import Description, FrameWriter
    from pibert.inference.recording import FittedRecording

_PICTURES = (".png", ".gif", ".mp4")
PANEL = "Output"
Out = Annotated[
    list[Path],
    typer.Option(
        help="Write this file; repeatable. .h5: PIBERT's own format; .nc: NetCDF; .pvd, .xdmf: "
        "ParaView; .png: a strip of frames; .gif, .mp4: animations.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Set the format. Default: from the file name.",
        metavar="h5|nc|pvd|xdmf|png|gif|mp4",
        rich_help_panel=PANEL,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace existing files.", rich_help_panel=PANEL),
]
Vorticity = Annotated[
    bool,
    typer.Option(
        "--vorticity",
        help="Add the vorticity to .nc, .pvd and .xdmf files.",
        rich_help_panel=PANEL,
    ),
]


def check_outputs(source: Path, out: list[Path], format_: str | None) -> dict[Path, str]:
    """The format of every output, as a suffix."""
    from pibert.data.convert import refuse_overwriting
    from pibert.data.writers import WRITERS

    known = (*WRITERS, *_PICTURES)
    if format_ is not None and len(out) > 1:
        raise ValueError("--format goes with one --out; of several, the names tell the formats")
    found: dict[Path, str] = {}
    for path in out:
        suffix = path.suffix.lower() if format_ is None else f".{format_.lower().lstrip('.')}"
        if suffix not in known:
            raise ValueError(
                f"{path}: expected a name that ends in {', '.join(known)}, or --format, found "
                f"{suffix or path.name!r}"
            )
        if path.suffix.lower() in known and path.suffix.lower() != suffix:
            raise ValueError(
                f"{path}: its name promises {path.suffix} but --format is {format_}; choose one"
            )
        if path.absolute() in {other.absolute() for other in found}:
            raise ValueError(f"{path} is named twice after --out; name every file once")
        refuse_overwriting(source, path)
        found[path] = suffix
    return found


def make_writers(
    outputs: dict[Path, str],
    about: "Description",
    *,
    overwrite: bool,
    expected: int,
    shown: Sequence[int] | None = None,
) -> "list[FrameWriter]":
    """A writer for each output, after a check that it can be written.

    Args:
        outputs: Paths and suffixes.
        about: Metadata of the frames.
        overwrite: Whether existing files may be replaced.
        expected: Number of frames to come.
        shown: Numbers of the frames in a strip; None: evenly spread.
    """
    from pibert.data.writers import WRITERS

    writers: list[FrameWriter] = []
    for path, suffix in outputs.items():
        if suffix in WRITERS:
            writers.append(WRITERS[suffix](path, about, overwrite=overwrite))
        else:
            writers.append(_picture(suffix, path, about, overwrite, expected, shown))
        writers[-1].check()
    if shown is not None and ".png" not in outputs.values():
        raise ValueError("--show goes with an --out that ends in .png")
    targets = [target.absolute() for writer in writers for target in writer.targets]
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise ValueError(f"two outputs would both write {twice.name}; choose other names")
    return writers


def _picture(
    suffix: str,
    path: Path,
    about: "Description",
    overwrite: bool,
    expected: int,
    shown: Sequence[int] | None,
) -> "FrameWriter":
    from pibert.report.forecast import GifWriter, Mp4Writer, StripWriter

    options: dict[str, Any] = {"overwrite": overwrite, "expected": expected}
    if suffix == ".png":
        return StripWriter(path, about, numbers=shown, **options)
    return (GifWriter if suffix == ".gif" else Mp4Writer)(path, about, **options)


def vorticity_unit(recording: "FittedRecording") -> str:
    """The unit of the vorticity; ValueError for fields without a velocity."""
    from pibert.evaluation.measure import gradient_unit, require_velocity, velocity_unit
    from pibert.inference.forecast import written_spec

    spec = written_spec(recording)
    require_velocity(spec, "the vorticity")
    return gradient_unit(velocity_unit(spec), recording.trajectory.length_unit)
