"""Where predicted frames go: the options, what files say of them, a writer for each output."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pibert.cli.flow_input import Flow
    from pibert.data.writers import Description, FrameWriter
    from pibert.fields import FieldSpec
    from pibert.trust import Trusted

_PICTURES = (".png", ".gif", ".mp4")
_PANEL = "Output"
Out = Annotated[
    list[Path],
    typer.Option(
        help="A file to write; may be given several times. .h5: PIBERT's own; .nc: NetCDF; .pvd, "
        ".xdmf: ParaView; .png: a strip of frames; .gif, .mp4: moving pictures.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="What to write, where the name of the file does not tell.",
        metavar="h5|nc|pvd|xdmf|png|gif|mp4",
        rich_help_panel=_PANEL,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace files that are there.", rich_help_panel=_PANEL),
]
Vorticity = Annotated[
    bool,
    typer.Option(
        "--vorticity",
        help="Add the vorticity to .nc, .pvd and .xdmf files.",
        rich_help_panel=_PANEL,
    ),
]


def check_outputs(source: Path, out: list[Path], format_: str | None) -> dict[Path, str]:
    """The suffix that says what to write, for every output."""
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
    """A writer for each output, which is known to have a place to write to.

    Args:
        outputs: Paths and suffixes.
        about: What is written.
        overwrite: Whether files that are there may be replaced.
        expected: How many frames will come.
        shown: Numbers of the frames that a strip shows; None: spread over all.
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
    from pibert.report.animation import GifWriter, Mp4Writer
    from pibert.report.forecast import StripWriter

    options: dict[str, Any] = {"overwrite": overwrite, "expected": expected}
    if suffix == ".png":
        return StripWriter(path, about, numbers=shown, **options)
    return (GifWriter if suffix == ".gif" else Mp4Writer)(path, about, **options)


def model_name(model: str) -> str:
    """What provenance calls it: the name of the folder or file."""
    return Path(model).resolve().name if Path(model).exists() else model


def describe(
    flow: "Flow",
    *,
    model: str,
    facts: Mapping[str, Any],
    counted: str,
    wants_vorticity: bool,
    times: Sequence[float] = (),
    dt: float | None = None,
    trusted: "Trusted | None" = None,
    level: float | None = None,
) -> "Description":
    """What the files of a prediction say of it.

    Args:
        flow: What it goes on from.
        model: Its name.
        facts: How the prediction was made.
        counted: What the numbers of frames count.
        wants_vorticity: Whether files for other programs get it.
        times: Of the frames, where not all are dt apart.
        dt: Time between them; that of the flow if not given.
        trusted: The model with its calibration, where there are error bars.
        level: Of the bars.
    """
    import numpy as np

    from pibert.cli.bars import describe_bars
    from pibert.data.counted import counts_frames
    from pibert.data.format.layout import keeps_step
    from pibert.data.generate import IDENTITY
    from pibert.data.provenance import predicted_source
    from pibert.data.writers import Description

    trajectory, spec = flow.trajectory, flow.predictor.spec
    grid, dt = trajectory.spec.grid, dt or flow.dt
    if grid.body is None and spec.grid.body is not None and spec.grid.shape == grid.shape:
        grid = replace(grid, body=spec.grid.body)
    is_even = len(times) < 2 or keeps_step(np.asarray(times), dt)
    units = [b if a == "1" else a for a, b in zip(trajectory.spec.units, spec.units, strict=True)]
    own = replace(
        trajectory.spec,
        grid=grid,
        parameters=spec.parameters,
        dt=None if counts_frames(trajectory) or not is_even else dt,
        units=tuple(units),
    )
    weights = flow.predictor.card.get("weights", {}).get("sha256")
    if trusted is not None:
        weights = trusted.calibration.weights_sha256  # of an ensemble, that of all members
    prediction = {
        "model": model,
        "weights_sha256": weights,
        "parameters": dict(flow.parameters),
        **facts,
        **describe_bars(trusted, level),
    }
    return Description(
        name=trajectory.name,
        spec=own,
        parameters=flow.parameters,
        source=predicted_source(trajectory.source, model, weights, level),
        local={
            "file": flow.recordings.path.name,
            "kind": flow.recordings.kind,
            **{key: value for key, value in trajectory.local.items() if key not in IDENTITY},
            "prediction": prediction,
        },
        length_unit=trajectory.length_unit,
        time_unit=trajectory.time_unit,
        vorticity_unit=_vorticity_unit(own, trajectory.length_unit, wants_vorticity),
        counted=counted,
        bars=level,
    )


def _vorticity_unit(spec: "FieldSpec", length_unit: str | None, wanted: bool) -> str | None:
    """Its unit if it is wanted; fields without a velocity are refused."""
    from pibert.evaluation.components import gradient_unit, require_velocity, velocity_unit

    if not wanted:
        return None
    require_velocity(spec, "the vorticity")
    return gradient_unit(velocity_unit(spec), length_unit)
