"""Flows between walls and in boxes: vortices, a driven channel, a cavity, a tube, a dam.

First the flows, then the recipes of data sets. All start from rest or from the stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from pibert.fields import Boundary, Grid
from pibert.physics import exact
from pibert.solver.boundaries import Box, Shape, Side, inside, make_links
from pibert.solver.lattice import Fluid, Scheme, equilibrium
from pibert.solver.lattice_recipe import (
    Drawn,
    LatticeRecipe,
    check_range,
    grid_of,
    spread,
    viscosity_of,
    with_sponge,
)
from pibert.solver.recipes import Recipe
from pibert.solver.stepping import Case


def taylor_green(
    reynolds: Sequence[float],
    *,
    shape: tuple[int, int] = (64, 64),
    speed: float = 0.05,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Decaying vortices in a periodic box; D is its length along x, U the largest initial u."""
    rows, columns = shape
    grid = Grid.periodic(shape, dx=1 / columns, dy=1 / columns)
    u, v, p = (part.to(device, dtype)[None] for part in exact.taylor_green(grid, 0.0, 1.0))
    start = equilibrium(3 * speed**2 * p, speed * u, speed * v)
    return Case(
        name="taylor_green",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=viscosity_of(reynolds, float(columns), speed, dtype, device), scheme=scheme
        ),
        links=make_links(shape, Box.periodic(), None, dtype, device),
        start=start.expand(len(reynolds), -1, -1, -1).contiguous(),
        cells=float(columns),
        speed=speed,
        grid=grid,
    )


def channel(
    reynolds: Sequence[float],
    *,
    cells: int = 32,
    columns: int = 8,
    speed: float = 0.05,
    scheme: Scheme = "trt",
    magic: float = 3 / 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Flow between walls, driven from rest by a body force; D is their distance.

    The force is such that the steady flow has the speed U on the centre line.
    """
    shape = (cells, columns)
    wall, open_ends = Side(Boundary.WALL), Side(Boundary.PERIODIC)
    box = Box(open_ends, open_ends, wall, wall)
    viscosity = viscosity_of(reynolds, float(cells), speed, dtype, device)
    push = 8 * viscosity * speed / cells**2
    return Case(
        name="channel",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=viscosity,
            scheme=scheme,
            magic=magic,
            force=torch.stack((push, torch.zeros_like(push))),
        ),
        links=make_links(shape, box, None, dtype, device),
        start=torch.zeros(len(reynolds), 9, *shape, dtype=dtype, device=device),
        cells=float(cells),
        speed=speed,
        grid=grid_of(shape, box, float(cells), (0.5, 0.5)),
    )


def cavity(
    reynolds: Sequence[float],
    *,
    cells: int = 64,
    coarsen: int = 1,
    speed: float = 0.1,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A square box of fluid at rest under a lid that moves along x; D is its side, U the lid's."""
    shape = (cells, cells)
    window = (slice(0, cells - cells % coarsen),) * 2
    wall = Side(Boundary.WALL)
    box = Box(wall, wall, wall, Side(Boundary.WALL, (speed, 0.0)))
    return Case(
        name="cavity",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=viscosity_of(reynolds, float(cells), speed, dtype, device), scheme=scheme
        ),
        links=make_links(shape, box, None, dtype, device),
        start=torch.zeros(len(reynolds), 9, *shape, dtype=dtype, device=device),
        cells=float(cells),
        speed=speed,
        grid=grid_of(shape, box, float(cells), (0.5, 0.5), window, None, coarsen),
        view=window,
        coarsen=coarsen,
    )


def tube(reynolds: Sequence[float], *, cells: int = 32, **channel: Any) -> Case:
    """A uniform stream enters between two walls and becomes Poiseuille flow; D is their distance.

    Args:
        reynolds: One per sample, with the speed of the stream.
        cells: D in cells.
        channel: As of ``_channel_flow``.
    """
    return _channel_flow("tube", reynolds, cells=float(cells), rows=cells, **channel)


def dam(
    reynolds: Sequence[float],
    *,
    cells: int = 16,
    height: float = 4.0,
    length: float = 15.0,
    position: float = 5.0,
    width: float = 0.5,
    sponge: float = 3.0,
    scheme: Scheme = "regularised",
    **channel: Any,
) -> Case:
    """A channel with a barrier on its bottom; D is the height of the barrier.

    Args:
        reynolds: One per sample, with the speed of the stream that enters.
        cells: D in cells.
        height: Of the channel, in D.
        length: As of ``_channel_flow``, and so is ``sponge``.
        position: From the inflow to the barrier, in D.
        width: Of the barrier along the stream, in D.
        sponge: See there.
        scheme: See there.
        channel: Other arguments of ``_channel_flow``.
    """
    return _channel_flow(
        "dam",
        reynolds,
        body=barrier(position * cells - 0.5, width * cells, cells - 0.5),
        cells=float(cells),
        rows=round(height * cells),
        length=length,
        sponge=sponge,
        scheme=scheme,
        **channel,
    )


def _channel_flow(
    name: str,
    reynolds: Sequence[float],
    *,
    body: Shape | None = None,
    cells: float,
    rows: int,
    length: float = 8.0,
    sponge: float = 1.0,
    coarsen: int = 1,
    speed: float = 0.1,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A stream that enters between two walls.

    Args:
        name: Of the case.
        reynolds: One per sample.
        body: In the stream.
        cells: D in cells.
        rows: Cells between the walls.
        length: Of the view, in D.
        sponge: Length of the layer behind the view in front of the outflow, in D.
        coarsen: Frames show means over so many by so many cells.
        speed: U in cells per step.
        scheme: See ``pibert.solver.wakes.cylinder``.
        dtype: Of all arrays.
        device: Of all arrays.
    """
    if not sponge > 0:
        raise ValueError(f"the sponge must have a positive length, found {sponge}")
    seen, columns = round(length * cells), round((length + sponge) * cells)
    shape = (rows, columns)
    stream, wall = (speed, 0.0), Side(Boundary.WALL)
    box = Box(Side(Boundary.INFLOW, stream), Side(Boundary.OUTFLOW, stream), wall, wall)
    viscosity = with_sponge(
        viscosity_of(reynolds, cells, speed, torch.float64, "cpu"),
        columns,
        cells,
        thick=speed * cells / 10,
        back=sponge,
    )
    solid = inside(shape, body)
    window = (slice(0, rows - rows % coarsen), slice(0, seen - seen % coarsen))
    stream_speed = torch.full((len(reynolds), *shape), speed, dtype=torch.float64)
    rest = torch.zeros_like(stream_speed)
    start = equilibrium(rest, stream_speed, rest)
    return Case(
        name=name,
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(viscosity=viscosity.to(device, dtype), scheme=scheme),
        links=make_links(shape, box, body, dtype, device),
        start=start.to(device, dtype),
        cells=cells,
        speed=speed,
        grid=grid_of(shape, box, cells, (0.5, 0.5), window, body, coarsen),
        view=window,
        coarsen=coarsen,
        solid=None if body is None else solid.to(device),
    )


def barrier(x: float, width: float, top: float) -> Shape:
    """A rectangle that stands on the bottom, from x on, in cells."""
    return lambda a, b: torch.maximum((a - x - width / 2).abs() - width / 2, b - top)


@dataclass(frozen=True, kw_only=True)
class EnclosedFlows(LatticeRecipe):
    """Flows that differ by their Reynolds number, spread evenly in its logarithm."""

    reynolds: tuple[float, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("reynolds", self.reynolds)

    def draw(self, index: int) -> dict[str, float]:
        return {"Re": spread(self, index, "reynolds", self.reynolds, log=True)}


@dataclass(frozen=True, kw_only=True)
class LidDrivenCavities(EnclosedFlows):
    """Square boxes of fluid that starts from rest under a moving lid; D is the side."""

    case: ClassVar[str] = "cavity"
    title: ClassVar[str] = "start of the flow in a lid-driven square cavity"
    reynolds: tuple[float, float] = (50.0, 1000.0)
    interval: float = 0.25
    points: int = 64

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return cavity(
            drawn["Re"],
            cells=self.points * self.cells_per_point,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )


@dataclass(frozen=True, kw_only=True)
class Tubes(EnclosedFlows):
    """A uniform stream becomes Poiseuille flow between two walls; D is their distance."""

    case: ClassVar[str] = "tube"
    title: ClassVar[str] = "start of the developing flow in a plane channel"
    reynolds: tuple[float, float] = (20.0, 400.0)
    interval: float = 0.25
    points: int = 32
    """Across the tube."""
    length: float = 4.0
    """Of the view, in D."""
    speed: float = 0.05

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return tube(
            drawn["Re"],
            cells=self.points * self.cells_per_point,
            length=self.length,
            coarsen=self.cells_per_point,
            speed=self.speed,
            scheme="regularised",
            device=device,
        )


@dataclass(frozen=True, kw_only=True)
class Dams(EnclosedFlows):
    """Flow over a barrier on the bottom of a channel; D is the height of the barrier."""

    case: ClassVar[str] = "dam"
    title: ClassVar[str] = "start of the flow over a barrier in a channel"
    coefficients: ClassVar[tuple[str, ...]] = ("drag",)
    reynolds: tuple[float, float] = (50.0, 400.0)
    frames: int = 60
    points: int = 8
    """In the height of the barrier."""
    height: float = 4.0
    """Of the channel; all lengths in D."""
    length: float = 12.0
    position: float = 3.0
    width: float = 0.5
    cells_per_point: int = 2

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return dam(
            drawn["Re"],
            cells=self.points * self.cells_per_point,
            height=self.height,
            length=self.length,
            position=self.position,
            width=self.width,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )


CAVITY_PRESETS: dict[str, Recipe] = {
    "demo": LidDrivenCavities(),
    "standard": LidDrivenCavities(samples=100, group=25, frames=100, cells_per_point=2),
}
TUBE_PRESETS: dict[str, Recipe] = {
    "demo": Tubes(),
    "standard": Tubes(samples=100, group=25, frames=100, points=64),
}
DAM_PRESETS: dict[str, Recipe] = {
    "demo": Dams(),
    "standard": Dams(samples=100, group=25, frames=100, points=16),
}
