"""Channels, units and parameters of a data set, and their standardisation."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields.structure import MovingBody
from pibert.physics.families import FAMILIES
from pibert.physics.grid import Grid

PARAMETER_WIDTH = 16
"""Length of the parameter vector that a model sees (the paper's parameter-token width)."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A physical parameter of a flow and its standardisation.

    A model sees ``(f(value) - mean) / std`` with f the identity or log10; mean and std are those
    of the training set, in the scaled variable.
    """

    name: str
    scaling: Literal["linear", "log"] = "linear"
    mean: float = 0.0
    std: float = 1.0
    lowest: float | None = None
    """Range in the training set, not scaled; None if not recorded."""
    highest: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):  # a card may hold anything
            raise ValueError(f"the name of a parameter must be a text, found {self.name!r}")
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
        low, high = self.lowest, self.highest
        is_range = low is not None and high is not None and -math.inf < low <= high < math.inf
        if not is_range and (low, high) != (None, None):
            raise ValueError(
                f"range of parameter {self.name!r} must be finite or None, found {low} to {high}"
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
        """Return the physical value."""
        value = scaled * self.std + self.mean
        return 10.0**value if self.scaling == "log" else value


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """Channels, units, parameters, time step and grid of a data set."""

    channels: tuple[str, ...] = ("u", "v")
    units: tuple[str, ...] = ()
    """One per channel; empty: all dimensionless."""
    parameters: tuple[Parameter, ...] = ()
    dt: float | None = None
    """Time between two frames; None if unknown."""
    grid: Grid = field(default_factory=lambda: Grid((64, 64)))
    family: str | None = None
    """The PDE family that governs the flow, a key of ``pibert.physics.FAMILIES``; None: unknown."""
    reference_velocity: float | None = None
    """U in Re = U D / nu; with ``reference_length`` it turns a Reynolds number into a viscosity."""
    reference_length: float | None = None
    viscosity: float | None = None
    """Kinematic viscosity if it is the same for all samples; overrides the Reynolds number."""
    state: tuple[str, ...] = ()
    """Channels that hold the state of a structure, constant in space; they come last."""
    bodies: tuple[MovingBody, ...] = ()
    """Bodies that move with a displacement, a channel or a series of the recording."""

    def __post_init__(self) -> None:
        for name in ("channels", "units", "parameters", "state", "bodies"):
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
        count = len(self.channels) - len(self.state)
        if self.channels[max(count, 0) :] != self.state or not count:
            raise ValueError(
                f"expected the state {list(self.state)} as the last channels, after at least one "
                f"field, found channels {list(self.channels)}"
            )
        for name in ("dt", "reference_velocity", "reference_length", "viscosity"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive or None, found {value}")

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def moving(self) -> tuple[MovingBody, ...]:
        """The bodies whose displacement is part of the state."""
        return tuple(body for body in self.bodies if body.displacement in self.state)

    @property
    def on_springs(self) -> tuple[MovingBody, ...]:
        """The bodies whose displacement, velocity and force are part of the state, on springs."""
        return tuple(
            body
            for body in self.moving
            if body.spring is not None
            and {body.spring.velocity, body.spring.force} <= {*self.state}
        )

    @property
    def of_fields(self) -> Self:
        """The spec without the state."""
        if not self.state:
            return self
        count = len(self.channels) - len(self.state)
        return replace(self, channels=self.channels[:count], units=self.units[:count], state=())

    @property
    def velocity(self) -> tuple[int, int] | None:
        """Channel indices of the velocity along x and y; None if there is no velocity.

        The family names these channels, because u and v may also be concentrations. Without a
        family, u and v are the velocity.
        """
        family = FAMILIES.get(self.family or "")
        names = ("u", "v") if self.family is None else family.velocity if family else None
        if names is None or not set(names) <= set(self.channels):
            return None
        return self.channels.index(names[0]), self.channels.index(names[1])

    def encode_parameters(
        self, values: Mapping[str, float | Float[Tensor, " b"]]
    ) -> Float[Tensor, "b 16"]:
        """Return the standardised vector that models take, in the order of this spec, zero-padded.

        A parameter without a value becomes NaN, so that models can tell it from the mean.
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
        data |= {"channels": list(self.channels), "units": list(self.units)}
        # Left out where there are none, as in older files.
        structure = {
            "state": list(self.state),
            "bodies": [body.to_dict() for body in self.bodies],
        }
        data = {name: value for name, value in data.items() if name not in structure}
        return data | {name: value for name, value in structure.items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        data = dict(data)
        data["channels"] = tuple(data["channels"])
        data["units"] = tuple(data["units"])
        data["parameters"] = tuple(Parameter(**entry) for entry in data["parameters"])
        data["grid"] = Grid.from_dict(data["grid"])
        data["state"] = tuple(data.get("state", ()))
        data["bodies"] = tuple(MovingBody.from_dict(entry) for entry in data.get("bodies", ()))
        return cls(**data)


@dataclass(frozen=True)
class Normalizer:
    """Per-channel standardisation: models use z-scores, residuals use physical units."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                f"expected a mean and a std per channel, found {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, self.mean)) or not all(0 < s < math.inf for s in self.std):
            raise ValueError(
                f"means must be finite and every std finite and positive, found {self.mean} and "
                f"{self.std}"
            )

    def first(self, channels: int) -> Self:
        """Return that of the first channels."""
        return type(self)(self.mean[:channels], self.std[:channels])

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
        # Cached: a copy to the device would wait for it. A traced tensor must not be cached.
        columns = _columns.__wrapped__ if torch.compiler.is_compiling() else _columns
        return columns(self.mean, self.std, x.dtype, x.device)


@lru_cache(maxsize=64)
def _columns(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and std (c, 1, 1)."""
    columns = torch.tensor((mean, std), dtype=dtype, device=device)[:, :, None, None]
    return columns[0], columns[1]
