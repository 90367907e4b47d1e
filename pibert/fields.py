"""The vocabulary: what a flow is made of, on which grid it lives, how it is scaled and recorded.

Layout everywhere: ``(batch, time, channel, y, x)``, C-contiguous, the row index is y and grows
with y (row 0 is the bottom side), ``u`` points along x and ``v`` along y. Everything here is
immutable and checked when it is made; what describes a field turns into plain JSON and back without
loss.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, Self, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pibert import draws

PARAMETER_WIDTH = 16
"""Length of the parameter vector that a model sees (the paper's parameter-token width)."""


class Boundary(StrEnum):
    """What bounds one side of the grid."""

    PERIODIC = "periodic"
    WALL = "wall"
    """No slip."""
    SLIP = "slip"
    INFLOW = "inflow"
    OUTFLOW = "outflow"
    OPEN = "open"
    """The view was cut out of a larger flow: nothing is known on this side."""


class Sides(NamedTuple):
    """The boundary kind on each side of the grid."""

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
        sides = Sides(*(_boundary(kind) for kind in self.sides))
        for a, b in (("left", "right"), ("bottom", "top")):
            kinds = {getattr(sides, a), getattr(sides, b)}
            if Boundary.PERIODIC in kinds and len(kinds) > 1:
                raise ValueError(f"{a} and {b} must both be periodic or neither, found {sides}")
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
        """The body, brought to a device once; it must be there."""
        if self.body is None:
            raise ValueError("the grid has no body")
        return on_device(self.body, device)

    @property
    def cell_length(self) -> float:
        """The length h = sqrt(dx dy) that makes dimensionless derivatives."""
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
            Sides(*(Boundary(kind) for kind in data["sides"])),
            None if body is None else _unpack_bits(body, (ny, nx)),
            (data["origin"][0], data["origin"][1]),
        )


def on_device(constant: Tensor, device: torch.device | str) -> Tensor:
    """A constant on a device. It is brought there once: a copy would wait for the device.

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


def _boundary(kind: str) -> Boundary:
    try:
        return Boundary(kind)
    except ValueError:
        choices = ", ".join(Boundary)
        raise ValueError(f"unknown boundary kind {kind!r}; choose from: {choices}") from None


def _pack_bits(mask: Tensor) -> str:
    bits = mask.flatten().to(torch.uint8)
    bits = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).reshape(-1, 8)
    weights = 2 ** torch.arange(8, dtype=torch.uint8)
    return base64.b64encode(bytes((bits * weights).sum(1).tolist())).decode()


def _unpack_bits(text: str, shape: tuple[int, int]) -> Tensor:
    packed = torch.tensor(list(base64.b64decode(text)), dtype=torch.int32)
    bits = (packed[:, None] >> torch.arange(8)) & 1
    return bits.flatten()[: shape[0] * shape[1]].reshape(shape).to(torch.bool)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A physical parameter of a flow and how its value is standardised for a model.

    A model sees ``(f(value) - mean) / std`` with f the identity or log10; mean and std are those
    of the training set, in the scaled variable.
    """

    name: str
    scaling: Literal["linear", "log"] = "linear"
    mean: float = 0.0
    std: float = 1.0
    lowest: float | None = None
    """Value in the training set, not scaled; None where that was not recorded."""
    highest: float | None = None

    def __post_init__(self) -> None:
        if self.scaling not in ("linear", "log"):
            raise ValueError(
                f"scaling of parameter {self.name!r} must be 'linear' or 'log', "
                f"found {self.scaling!r}"
            )
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0):
            raise ValueError(
                f"parameter {self.name!r} needs a finite mean and a positive std, "
                f"found {self.mean} and {self.std}"
            )
        ends = (self.lowest, self.highest)
        if ends != (None, None) and not (
            None not in ends and -math.inf < cast(float, ends[0]) <= cast(float, ends[1]) < math.inf
        ):
            raise ValueError(
                f"parameter {self.name!r} needs a finite lowest and a highest value that is not "
                f"below it, or neither, found {ends[0]} and {ends[1]}"
            )

    def standardise(self, value: Tensor) -> Tensor:
        if self.scaling == "log":
            if bool((value <= 0).any()):
                raise ValueError(
                    f"parameter {self.name!r} is scaled by log10 and must be positive, "
                    f"found {value.min().item():g}"
                )
            value = torch.log10(value)
        return (value - self.mean) / self.std

    def restore(self, scaled: Tensor) -> Tensor:
        """The physical value again."""
        value = scaled * self.std + self.mean
        return 10.0**value if self.scaling == "log" else value


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """What a data set's numbers mean: channels, units, parameters, time step and grid."""

    channels: tuple[str, ...] = ("u", "v")
    units: tuple[str, ...] = ()
    """One per channel; empty stands for dimensionless."""
    parameters: tuple[Parameter, ...] = ()
    dt: float | None = None
    """Time between two frames; None where it is not known."""
    grid: Grid = field(default_factory=lambda: Grid((64, 64)))
    family: str | None = "incompressible"
    """The PDE family that governs the flow, a key of ``pibert.physics.FAMILIES``, if known."""
    reference_velocity: float | None = None
    """U in Re = U D / nu; with ``reference_length`` it turns a Reynolds number into a viscosity."""
    reference_length: float | None = None
    viscosity: float | None = None
    """Kinematic viscosity where it is the same for all samples; overrides the Reynolds number."""

    def __post_init__(self) -> None:
        for name in ("channels", "units", "parameters"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a tuple, found {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.channels or len(set(self.channels)) != len(self.channels):
            raise ValueError(f"channels must be one or more different names, found {self.channels}")
        if not self.units:
            object.__setattr__(self, "units", ("1",) * len(self.channels))
        if len(self.units) != len(self.channels):
            raise ValueError(
                f"expected {len(self.channels)} units for channels {self.channels}, "
                f"found {self.units}"
            )
        names = self.parameter_names
        if len(set(names)) != len(names):
            raise ValueError(f"parameter names must differ, found {names}")
        if len(names) > PARAMETER_WIDTH:
            raise ValueError(
                f"at most {PARAMETER_WIDTH} parameters fit a model, found {len(names)}"
            )
        for name in ("dt", "reference_velocity", "reference_length", "viscosity"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive or None, found {value}")

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def velocity(self) -> tuple[int, int] | None:
        """Places of u and v among the channels, where they are the velocity of a flow.

        Other families use these names for something else: concentrations, a displacement.
        """
        is_flow = self.family is None or self.family.startswith(("incompressible", "euler"))
        if not is_flow or not {"u", "v"} <= set(self.channels):
            return None
        return self.channels.index("u"), self.channels.index("v")

    def encode_parameters(
        self, values: Mapping[str, float | Float[Tensor, " b"]]
    ) -> Float[Tensor, "b 16"]:
        """The vector a model sees: standardised, in the order of this spec, padded with zeros.

        A declared parameter without a value becomes NaN: the model reads that as unknown (zero in
        its parameter token) and can tell it from a value that happens to equal the mean.
        """
        unknown = sorted(set(values) - set(self.parameter_names))
        if unknown:
            raise ValueError(
                f"unknown parameters {unknown}; this data has {list(self.parameter_names)}"
            )
        columns = {name: torch.as_tensor(v, dtype=torch.float32) for name, v in values.items()}
        batch = torch.broadcast_shapes((1,), *(column.shape for column in columns.values()))
        vector = torch.zeros(*batch, PARAMETER_WIDTH)
        for index, parameter in enumerate(self.parameters):
            value = columns.get(parameter.name)
            vector[..., index] = math.nan if value is None else parameter.standardise(value)
        return vector

    def to_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["parameters"] = [
            {key: value for key, value in asdict(parameter).items() if value is not None}
            for parameter in self.parameters
        ]
        data["grid"] = self.grid.to_dict()
        return data | {"channels": list(self.channels), "units": list(self.units)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        data = dict(data)
        data["channels"] = tuple(data["channels"])
        data["units"] = tuple(data["units"])
        data["parameters"] = tuple(Parameter(**entry) for entry in data["parameters"])
        data["grid"] = Grid.from_dict(data["grid"])
        return cls(**data)


@dataclass(frozen=True)
class Normalizer:
    """Per-channel standardisation: models see z-scores, physics sees physical units."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                f"expected a mean and a std per channel, found {len(self.mean)} and {len(self.std)}"
            )
        if not all(math.isfinite(m) for m in self.mean):
            raise ValueError(f"means must be finite, found {self.mean}")
        if not all(math.isfinite(s) and s > 0 for s in self.std):
            raise ValueError(f"every std must be positive and finite, found {self.std}")

    @classmethod
    def identity(cls, channels: int) -> Self:
        return cls((0.0,) * channels, (1.0,) * channels)

    def apply(self, x: Float[Tensor, "*batch c y x"]) -> Float[Tensor, "*batch c y x"]:
        mean, std = self._columns(x)
        return (x - mean) / std

    def invert(self, z: Float[Tensor, "*batch c y x"]) -> Float[Tensor, "*batch c y x"]:
        mean, std = self._columns(z)
        return z * std + mean

    def _columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[-3] != len(self.mean):
            raise ValueError(f"expected {len(self.mean)} channels, found {x.shape[-3]}")
        # Kept: making them anew would wait for the device. A traced one would not be a real tensor.
        make = _columns.__wrapped__ if torch.compiler.is_compiling() else _columns
        return make(self.mean, self.std, x.dtype, x.device)


@lru_cache(maxsize=64)
def _columns(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and std (c, 1, 1)."""
    columns = torch.tensor((mean, std), dtype=dtype, device=device)[:, :, None, None]
    return columns[0], columns[1]


@runtime_checkable
class FrameSource(Protocol):
    """Frames that are read when they are asked for: from a file, or as a view of other frames."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(t, c, y, x) of fields, (t, y, x) of masks."""
        ...

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        """The frames of a slice with positive step; of fields, the channels by index."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Trajectory:
    """One recorded or simulated flow in physical units.

    A point is known where it lies outside the body and is valid. Values elsewhere mean nothing and
    may be NaN.
    """

    name: str
    states: Float[Tensor, "t c y x"] | FrameSource
    time: Float[Tensor, " t"]
    """Strictly increasing; the frame number where the source states no time."""
    spec: FieldSpec
    """A static body is also the body of its grid."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Values of the parameters that the spec declares; one that is not here is unknown."""
    body: Bool[Tensor, "... y x"] | FrameSource | None = None
    """True inside a solid body: (y, x), or (t, y, x) where the body moves."""
    valid: Bool[Tensor, "... y x"] | FrameSource | None = None
    """False where a measurement is missing or an outlier: (y, x) or (t, y, x)."""
    series: Mapping[str, Float[Tensor, " n"]] = field(default_factory=dict)
    """Numbers that go with the frames, such as the displacement of a body or the lift on it."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Source facts: what the source states, as plain JSON; None stands for unknown."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """Local representation: what was done to the source's data here (stride, crop, resize ...)."""
    length_unit: str | None = None
    time_unit: str | None = None

    def __post_init__(self) -> None:
        shape, grid = tuple(self.states.shape), self.spec.grid
        expected = (len(self.time), len(self.spec.channels), *grid.shape)
        if not expected[0] and not shape[0]:
            raise ValueError(
                f"trajectory {self.name!r}: expected at least one frame, found none; leave it out"
            )
        if shape != expected:
            raise ValueError(
                f"trajectory {self.name!r}: expected states of shape (t, c, y, x) = {expected} "
                f"from its time, channels and grid, found {shape}"
            )
        object.__setattr__(self, "time", self.time.to(torch.float64))
        if not bool(self.time.isfinite().all()) or bool((self.time.diff() <= 0).any()):
            raise ValueError(f"trajectory {self.name!r}: time must grow from frame to frame")
        for mask_name in ("body", "valid"):
            mask = getattr(self, mask_name)
            if mask is not None and tuple(mask.shape) not in (shape[2:], (shape[0], *shape[2:])):
                raise ValueError(
                    f"trajectory {self.name!r}: expected a {mask_name} mask of shape {shape[2:]} "
                    f"or {(shape[0], *shape[2:])}, found {tuple(mask.shape)}"
                )
        for name, values in self.series.items():
            if tuple(values.shape) != (shape[0],):
                raise ValueError(
                    f"trajectory {self.name!r}: expected one value of {name!r} per frame, "
                    f"({shape[0]},), found shape {tuple(values.shape)}"
                )
        unknown = sorted(set(self.parameters) - set(self.spec.parameter_names))
        if unknown:
            raise ValueError(
                f"trajectory {self.name!r}: parameters {unknown} are not among those that its spec "
                f"declares: {list(self.spec.parameter_names)}"
            )
        for name, value in self.parameters.items():
            if not math.isfinite(value):
                raise ValueError(
                    f"trajectory {self.name!r}: parameter {name!r} must be finite, found {value}; "
                    "leave it out where it is unknown"
                )
        self._reconcile_bodies()

    def _reconcile_bodies(self) -> None:
        """One static body, whether it was given with the grid or with the trajectory."""
        grid = self.spec.grid
        if self.body is None:
            object.__setattr__(self, "body", grid.body)
            return
        static = self.body if isinstance(self.body, Tensor) and self.body.ndim == 2 else None
        if grid.body is None and static is not None:
            spec = replace(self.spec, grid=replace(grid, body=static))
            object.__setattr__(self, "spec", spec)
        elif grid.body is not None and (static is None or not torch.equal(grid.body, static)):
            raise ValueError(
                f"trajectory {self.name!r}: its body differs from the body of its grid; give one"
            )

    @property
    def num_frames(self) -> int:
        return len(self.time)

    def read(
        self, frames: slice = slice(None), channels: Sequence[int] | None = None
    ) -> Float[Tensor, "t c y x"]:
        """The states of some frames and channels; the rest is not read."""
        if isinstance(self.states, Tensor):
            states = self.states[frames]
            return states if channels is None else states[:, list(channels)]
        return self.states.read(frames, channels)

    def known(self, frames: slice = slice(None)) -> Bool[Tensor, "t y x"]:
        """The points of some frames that are fluid and valid."""
        count = len(range(*frames.indices(self.num_frames)))
        device = self.states.device if isinstance(self.states, Tensor) else None
        known = torch.ones(count, *self.spec.grid.shape, dtype=torch.bool, device=device)
        if self.body is not None:
            known &= ~read_mask(self.body, frames).to(known.device)
        if self.valid is not None:
            known &= read_mask(self.valid, frames).to(known.device)
        return known

    def load(self, device: torch.device | str | None = None) -> Self:
        """The same trajectory with its states and masks in memory, on a device if one is named."""

        def loaded(mask: Tensor | FrameSource | None) -> Tensor | None:
            if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
                return mask
            return read_mask(mask, slice(None)).to(device)

        return replace(
            self, states=self.read().to(device), body=loaded(self.body), valid=loaded(self.valid)
        )


def read_mask(mask: Tensor | FrameSource, frames: slice) -> Bool[Tensor, "*t y x"]:
    """Some frames of a mask; a static one as it is."""
    if isinstance(mask, Tensor):
        return mask if mask.ndim == 2 else mask[frames]
    return mask.read(frames)


@dataclass(frozen=True)
class Batch:
    """What a model sees and what it should answer, standardised; unknown points are zero."""

    x: Float[Tensor, "b hc y x"]
    """The input frames folded into channels, the newest last."""
    y: Float[Tensor, "b s c2 y x"]
    """The frames to predict."""
    parameters: Float[Tensor, "b 16"]
    """As ``FieldSpec.encode_parameters`` makes them."""
    mask: Bool[Tensor, "b y x"]
    """True where every input frame is known."""
    target_mask: Bool[Tensor, "b s y x"]
    """True where the frame to predict is known."""
    sample: Int[Tensor, " b"]
    """Number of each sample in its data set."""
    seeds: Int[Tensor, " b"]
    """What is random about a sample is drawn from its seed (``pibert.draws``)."""
    place: int = 0
    """Place of the first sample in the order of the epoch; the others follow it."""

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device | str) -> Self:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self.map(lambda tensor: tensor.pin_memory())

    def reseeded(self, seed: int, epoch: int, place: int = 0) -> Self:
        """The same samples with the chances and the place that they have in an epoch of a run."""
        return replace(self, seeds=draws.sample_seeds(seed, epoch, self.sample), place=place)

    def map(self, move: Callable[[Tensor], Tensor]) -> Self:
        """The batch with something done to every tensor."""
        tensors = {n: move(v) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **cast(Any, tensors))
