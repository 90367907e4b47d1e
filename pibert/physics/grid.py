"""A uniform grid, the boundary conditions of its sides, and a body in it."""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class Boundary(StrEnum):
    """The boundary condition of one side of the grid."""

    PERIODIC = "periodic"
    WALL = "wall"
    """No slip."""
    SLIP = "slip"
    INFLOW = "inflow"
    OUTFLOW = "outflow"
    OPEN = "open"
    """The view was cut out of a larger flow: nothing is known on this side."""


class Sides(NamedTuple):
    """The boundary condition of each side of the grid."""

    left: Boundary = Boundary.OPEN
    right: Boundary = Boundary.OPEN
    bottom: Boundary = Boundary.OPEN
    top: Boundary = Boundary.OPEN


@dataclass(frozen=True, eq=False)
class Grid:
    """A uniform rectangular grid, possibly with non-square cells and a solid body in it."""

    shape: tuple[int, int]
    """Number of rows (y) and columns (x)."""
    dx: float = 1.0
    dy: float = 1.0
    sides: Sides = Sides()
    body: Bool[Tensor, "y x"] | None = None
    """True inside a solid body."""
    origin: tuple[float, float] = (0.0, 0.0)
    """Coordinates (x, y) of the point in row 0, column 0."""

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or min(self.shape) < 1 or any(n != int(n) for n in self.shape):
            raise ValueError(
                f"grid shape must be two positive whole numbers (y, x), found {self.shape}"
            )
        object.__setattr__(self, "shape", (int(self.shape[0]), int(self.shape[1])))
        for name in ("dx", "dy"):
            step = getattr(self, name)
            if not (math.isfinite(step) and step > 0):
                raise ValueError(f"grid {name} must be positive and finite, found {step}")
        if unknown := [str(kind) for kind in self.sides if kind not in set(Boundary)]:
            raise ValueError(f"unknown boundary kind {unknown[0]!r}; choose {', '.join(Boundary)}")
        sides = Sides(*map(Boundary, self.sides))
        for a, b in (("left", "right"), ("bottom", "top")):
            kinds = {getattr(sides, a), getattr(sides, b)}
            if Boundary.PERIODIC in kinds and len(kinds) > 1:
                found = ", ".join(f"{side} {kind}" for side, kind in sides._asdict().items())
                raise ValueError(f"{a} and {b} must both be periodic or neither, found {found}")
        object.__setattr__(self, "sides", sides)
        if self.body is not None:
            if tuple(self.body.shape) != tuple(self.shape):
                raise ValueError(
                    f"body mask must have the grid's shape {self.shape}, "
                    f"found {tuple(self.body.shape)}"
                )
            object.__setattr__(self, "body", self.body.detach().to("cpu", torch.bool, copy=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def periodic(cls, shape: tuple[int, int], dx: float = 1.0, dy: float = 1.0) -> Self:
        """A doubly periodic box without a body."""
        return cls(shape, dx, dy, Sides(*[Boundary.PERIODIC] * 4))

    @property
    def periodic_x(self) -> bool:
        return self.sides.left is Boundary.PERIODIC

    @property
    def periodic_y(self) -> bool:
        return self.sides.bottom is Boundary.PERIODIC

    def body_on(self, device: torch.device | str) -> Bool[Tensor, "y x"]:
        """The body on a device; raises if the grid has none."""
        if self.body is None:
            raise ValueError("the grid has no body")
        return on_device(self.body, device)

    @property
    def cell_length(self) -> float:
        """The length h = sqrt(dx dy) that makes derivatives dimensionless."""
        return math.sqrt(self.dx * self.dy)

    def coordinates(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> tuple[Float[Tensor, "y x"], Float[Tensor, "y x"]]:
        """Coordinates (x, y) of every point."""
        ny, nx = self.shape
        x = self.origin[0] + self.dx * torch.arange(nx, dtype=dtype, device=device)
        y = self.origin[1] + self.dy * torch.arange(ny, dtype=dtype, device=device)
        rows, columns = torch.meshgrid(y, x, indexing="ij")
        return columns, rows

    def to_dict(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dx": self.dx,
            "dy": self.dy,
            "sides": [str(kind) for kind in self.sides],
            "body": None if self.body is None else _pack_bits(self.body),
            "origin": list(self.origin),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        ny, nx = data["shape"]
        body = data["body"]
        return cls(
            (ny, nx),
            data["dx"],
            data["dy"],
            Sides(*data["sides"]),
            None if body is None else _unpack_bits(body, (ny, nx)),
            (data["origin"][0], data["origin"][1]),
        )


def on_device(constant: Tensor, device: torch.device | str) -> Tensor:
    """Return a constant on a device. It is copied once, since a copy waits for the device.

    Copies live as long as the constant, which must not be changed.
    """
    device = torch.device(device)
    if constant.device == device or torch.compiler.is_compiling():
        return constant.to(device)
    copies = _COPIES.setdefault(constant, {})
    if device not in copies:
        # Made outside any inference mode, so that later calls may differentiate through it.
        with torch.inference_mode(False):
            copies[device] = constant.to(device)
    return copies[device]


_COPIES: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _pack_bits(mask: Tensor) -> str:
    return base64.b64encode(np.packbits(mask.numpy(), bitorder="little").tobytes()).decode()


def _unpack_bits(text: str, shape: tuple[int, int]) -> Tensor:
    packed = np.frombuffer(base64.b64decode(text), np.uint8)
    # A slice, not ``count``, which would allocate what a hostile shape asks for.
    bits = np.unpackbits(packed, bitorder="little")[: shape[0] * shape[1]]
    return torch.from_numpy(bits.reshape(shape).astype(bool))
