"""OpenFOAM's cells on the grid of our own frames, read with PIBERT's reader."""

from pathlib import Path

import numpy as np
import torch

from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.fields import FieldSpec, Grid, MovingBody, Parameter, Trajectory
from pibert.fields.trajectory import read_mask
from studies.openfoam.case import DOWNSTREAM, SIDE, UPSTREAM, Cylinder, read_series

VIEW = Grid((40, 80), dx=0.1, dy=0.1, origin=(-1.95, -1.95))
"""From -2 to 6 D along and -2 to 2 D across the stream."""


def read_frames(case: Path, flow: Cylinder, view: Grid = VIEW) -> Trajectory:
    """Return the frames of a case after its warm-up, with drag, lift and displacement.

    The reader covers the whole domain. Half the spacing of the frames makes their points a subset
    of its grid.
    """
    step, low = view.dx / 2, (-UPSTREAM, -SIDE)
    shape = (1 + _steps(2 * SIDE, step), 1 + _steps(UPSTREAM + DOWNSTREAM, step))
    whole = open_recordings(case, "openfoam", Hints(shape=shape))[0]
    columns, rows = (
        slice(first, first + 2 * size, 2)
        for first, size in zip(
            (_steps(start - edge, step) for start, edge in zip(view.origin, low, strict=True)),
            reversed(view.shape),
            strict=True,
        )
    )
    first = int(torch.nonzero(whole.time >= flow.warm_up - 1e-6)[0, 0])
    count = whole.num_frames - first
    assert count == flow.frames, f"expected {flow.frames} frames in {case}, found {count}"
    # One at a time: all frames of the whole domain would not fit into memory.
    each = [slice(frame, frame + 1) for frame in range(first, first + count)]
    states = torch.cat([whole.read(frame)[..., rows, columns] for frame in each])
    assert whole.body is not None
    moves = flow.spring is not None
    masks = [read_mask(whole.body, frame)[..., rows, columns] for frame in each]
    body = torch.cat(masks) if moves else masks[0]
    grid = Grid(
        view.shape, dx=view.dx, dy=view.dy, origin=view.origin, body=None if moves else body
    )
    parameters = {"Re": flow.reynolds}
    if flow.spring is not None:
        parameters["mass_ratio"] = flow.spring.mass / (0.25 * np.pi)
        parameters["reduced_velocity"] = flow.spring.reduced_velocity
    time = whole.time[first:]
    series = vars(read_series(case).at(time.numpy()))
    return Trajectory(
        name=case.name,
        states=states.float(),
        time=time - time[0],
        spec=FieldSpec(
            channels=("u", "v", "p"),
            parameters=tuple(
                Parameter(name=name, scaling="log" if name == "Re" else "linear")
                for name in parameters
            ),
            dt=flow.interval,
            grid=grid,
            family="incompressible",
            reference_velocity=1.0,
            reference_length=1.0,
            bodies=(MovingBody(radius=0.5),) if moves else (),
        ),
        length_unit="D",
        time_unit="D/U",
        series={
            name: torch.from_numpy(values).float()
            for name, values in series.items()
            if name != "time" and values is not None
        },
        parameters=parameters,
        body=body,
        source={"kind": "simulated", "title": "cylinder by OpenFOAM", "method": "finite volumes"},
    )


def _steps(length: float, step: float) -> int:
    count = round(length / step)
    if abs(count * step - length) > 1e-3 * step:
        raise ValueError(
            f"frames need a spacing of which half divides the lengths of OpenFOAM's domain, found "
            f"{2 * step:g} D, half of which does not divide {length:g} D"
        )
    return count
