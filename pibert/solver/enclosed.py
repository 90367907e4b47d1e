"""Flows between walls: a lid-driven cavity, a tube, a dam; from rest or a uniform stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pibert.config import Count, Positive
from pibert.fields import Boundary
from pibert.solver.boundaries import Box, Shape, Side
from pibert.solver.lattice import Scheme, equilibrium
from pibert.solver.lattice_recipe import Drawn, LatticeRecipe, build_case, with_sponge
from pibert.solver.recipes import Range, Recipe
from pibert.solver.stepping import Case


def cavity(
    reynolds: Sequence[float],
    *,
    cells: int = 64,
    coarsen: int = 1,
    speed: float = 0.1,
    **options: Any,
) -> Case:
    """A square box of fluid at rest under a lid that moves along x; D is its side, U the lid's.

    ``options`` are ``scheme``, ``dtype`` and ``device`` of ``build_case``.
    """
    wall = Side(Boundary.WALL)
    return build_case(
        "cavity",
        reynolds,
        Box(wall, wall, wall, Side(Boundary.WALL, (speed, 0.0))),
        start=torch.zeros(len(reynolds), 9, cells, cells),
        cells=float(cells),
        speed=speed,
        view=(slice(0, cells - cells % coarsen),) * 2,
        coarsen=coarsen,
        **options,
    )


def tube(reynolds: Sequence[float], *, cells: int = 32, **channel: Any) -> Case:
    """A uniform stream enters between two walls and becomes Poiseuille flow; D is their distance.

    ``channel`` are arguments of ``_channel_flow``.
    """
    return _channel_flow("tube", reynolds, cells=cells, rows=cells, **channel)


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

    ``height`` is that of the channel, ``position`` the distance from the inflow to the barrier and
    ``width`` that of the barrier along the stream, all in D. ``channel`` are other arguments of
    ``_channel_flow``.
    """
    return _channel_flow(
        "dam",
        reynolds,
        body=barrier(position * cells - 0.5, width * cells, cells - 0.5),
        cells=cells,
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
    cells: int,
    rows: int,
    length: float = 8.0,
    sponge: float = 1.0,
    coarsen: int = 1,
    speed: float = 0.1,
    **options: Any,
) -> Case:
    """A uniform stream that enters between two walls, ``rows`` cells apart.

    ``length`` is that of the view and ``sponge`` that of the layer between it and the outflow, in
    D. ``options`` are ``body``, ``scheme``, ``dtype`` and ``device`` of ``build_case``.
    """
    seen, columns = round(length * cells), round((length + sponge) * cells)
    viscosity = with_sponge(reynolds, columns, float(cells), speed, outflow=sponge)
    stream, wall = (speed, 0.0), Side(Boundary.WALL)
    u = torch.full((len(reynolds), rows, columns), speed, dtype=torch.float64)
    rest = torch.zeros_like(u)
    return build_case(
        name,
        reynolds,
        Box(Side(Boundary.INFLOW, stream), Side(Boundary.OUTFLOW, stream), wall, wall),
        start=equilibrium(rest, u, rest),
        cells=float(cells),
        speed=speed,
        viscosity=viscosity,
        view=(slice(0, rows - rows % coarsen), slice(0, seen - seen % coarsen)),
        coarsen=coarsen,
        **options,
    )


def barrier(x: float, width: float, top: float) -> Shape:
    """A rectangle that stands on the bottom, from x on, in cells."""
    return lambda a, b: torch.maximum((a - x - width / 2).abs() - width / 2, b - top)


@dataclass(frozen=True, kw_only=True)
class EnclosedFlows(LatticeRecipe):
    """Flows with Reynolds numbers spread evenly in the logarithm."""

    reynolds: Range
    points: Count
    """Points of the view in D."""

    def draw(self, index: int) -> dict[str, float]:
        return {"Re": self.draw_reynolds(index, self.reynolds, log=True)}

    def lattice(self, device: str) -> dict[str, Any]:
        """The arguments that all cases of this module share."""
        return {
            "cells": self.points * self.cells_per_point,
            "coarsen": self.cells_per_point,
            "speed": self.speed,
            "device": device,
        }


@dataclass(frozen=True, kw_only=True)
class LidDrivenCavities(EnclosedFlows):
    """Square boxes of fluid that starts from rest under a moving lid; D is the side."""

    case = "cavity"
    title = "start of the flow in a lid-driven square cavity"
    reynolds: Range = (50.0, 1000.0)
    interval: Positive = 0.25
    points: Count = 64

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return cavity(drawn["Re"], **self.lattice(device))


@dataclass(frozen=True, kw_only=True)
class Tubes(EnclosedFlows):
    """A uniform stream becomes Poiseuille flow between two walls; D is their distance."""

    case = "tube"
    title = "start of the developing flow in a plane channel"
    reynolds: Range = (20.0, 400.0)
    interval: Positive = 0.25
    points: Count = 32
    length: Positive = 4.0
    """Length of the view, in D."""
    speed: Positive = 0.05

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return tube(drawn["Re"], length=self.length, scheme="regularised", **self.lattice(device))


@dataclass(frozen=True, kw_only=True)
class Dams(EnclosedFlows):
    """Flow over a barrier on the bottom of a channel; D is the height of the barrier."""

    case = "dam"
    title = "start of the flow over a barrier in a channel"
    coefficients = ("drag",)
    reynolds: Range = (50.0, 400.0)
    frames: Count = 60
    points: Count = 8
    height: Positive = 4.0
    """Height of the channel; all lengths in D."""
    length: Positive = 12.0
    position: Positive = 3.0
    width: Positive = 0.5
    cells_per_point: Count = 2

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return dam(
            drawn["Re"],
            height=self.height,
            length=self.length,
            position=self.position,
            width=self.width,
            **self.lattice(device),
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
