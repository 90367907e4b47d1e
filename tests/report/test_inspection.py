"""The picture of an inspection: drawn for any kind of channels, frames and masks."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pibert.data.inspection.checks import inspect
from pibert.data.readers.recordings import Recordings
from pibert.fields import FieldSpec, Grid, Trajectory
from pibert.report.inspection import draw_inspection

SHAPE = (12, 20)


def flow(
    shape: tuple[int, int] = SHAPE,
    frames: int = 5,
    channels: tuple[str, ...] = ("u", "v"),
    states: Tensor | None = None,
    valid: Tensor | None = None,
) -> Trajectory:
    drawn = torch.randn(frames, len(channels), *shape, generator=torch.Generator().manual_seed(0))
    return Trajectory(
        name="a",
        states=drawn if states is None else states,
        time=0.1 * torch.arange(frames, dtype=torch.float64),
        spec=FieldSpec(channels=channels, dt=0.1, grid=Grid(shape, 0.1, 0.2)),
        valid=valid,
    )


def draw(path: Path, trajectory: Trajectory) -> None:
    recordings = Recordings(
        kind="native", path=Path("flow.h5"), names=("a",), load=lambda name: trajectory
    )
    draw_inspection(path, trajectory, inspect(recordings))
    assert path.read_bytes().startswith(b"\x89PNG") and os.listdir(path.parent) == [path.name]


def panels(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(): ax for sub in figure.subfigs for ax in sub.axes if ax.get_title()}


def test_derivatives_are_per_second_while_fields_keep_their_units(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    """A shear u = 3 y with u in m/s and y in mm: a vorticity of -3000 per second."""
    still = flow()
    _, y = still.spec.grid.coordinates()
    states = torch.stack((3 * y, torch.zeros_like(y)))[None].repeat(5, 1, 1, 1)
    spec = replace(still.spec, units=("m/s", "m/s"))
    draw(
        tmp_path / "a.png",
        replace(still, states=states, spec=spec, length_unit="mm", time_unit="s"),
    )
    found = panels(drawn[0])
    assert {"u [m/s]", "vorticity [1/s]", "divergence [1/s]"} <= set(found)
    vorticity = found["vorticity [1/s]"].images[0].get_array()
    assert vorticity is not None and np.asarray(vorticity) == pytest.approx(-3000, rel=1e-4)


@pytest.mark.parametrize(
    "trajectory",
    [
        flow(frames=1),
        flow(channels=tuple("abcdefghi")),
        flow(shape=(2, 9)),
        flow(valid=torch.zeros(SHAPE, dtype=torch.bool)),
        flow(states=torch.full((5, 2, *SHAPE), math.nan)),
        flow(valid=(torch.arange(5 * 12 * 20) % 7 > 0).view(5, *SHAPE)),
    ],
    ids=["one frame", "many channels", "two rows", "nothing known", "not finite", "gaps"],
)
def test_unusual_data_can_be_drawn(tmp_path: Path, trajectory: Trajectory) -> None:
    draw(tmp_path / "flow.png", trajectory)
