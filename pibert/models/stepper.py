"""The base of every model: options, input checks, unknown points and the skip connection.

A model steps standardised fields (b, history * c, y, x), the newest frame last, to
(b, horizon * c, y, x). With ``residual`` the output is added to the last frame and the last layer
starts at zero, so an untrained model is exactly persistence.

Channels of the structural state (``FieldSpec.state``) are constant in space: every model reads them
at all points, and predicts each as the mean of its output over the grid, a learned integral, as a
force is one. Displacement and velocity of a body on a spring follow from the force
(``models/motion.py``) if the model predicts changes of the last frame. The distances of the points
from moving bodies (``models/bodies.py``) are inputs of models that see a mask, now and where the
present force takes the bodies.
"""

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import PARAMETER_WIDTH, FieldSpec, Normalizer, with_uniform_state
from pibert.models.bodies import BodyDistance
from pibert.models.equation_terms import EquationTerms
from pibert.models.layers import (
    Answer,
    Fields,
    Mask,
    Parameters,
    Vector,
    count_coordinates,
    is_captured,
    point_coordinates,
)
from pibert.models.motion import EquationOfMotion


@dataclass(frozen=True, kw_only=True, slots=True)
class StepperConfig:
    """Options of every model.

    A value of a ``Literal`` type must be one of the choices. Numbers must be finite and not
    negative. Integers must be whole, and with a positive default at least 1, unless ``MAY_BE_ZERO``
    names them. The range of options with a negative default or none is not checked.
    """

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ()

    history: int = 1
    """Input frames, folded into channels, the newest last."""
    horizon: int = 1
    """Output frames, folded into channels."""
    residual: bool = True
    """Predict the change since the last frame instead of the frame itself."""

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for option in fields(self):
            name, kind, value = option.name, types[option.name], getattr(self, option.name)
            if get_origin(kind) is Literal and value not in get_args(kind):
                choices = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"unknown {name} {value!r}; choose from: {choices}")
            if kind not in (int, float):
                continue
            number: Any = Integral if kind is int else Real
            if isinstance(value, bool) or not isinstance(value, number):
                whole = "whole " if kind is int else ""
                raise ValueError(f"{name} must be a {whole}number, found {value!r}")
            default = option.default
            if isinstance(default, kind) and default >= 0:
                least = int(kind is int and default > 0 and name not in self.MAY_BE_ZERO)
                if not least <= value < math.inf:
                    raise ValueError(f"{name} must be at least {least} and finite, found {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineConfig(StepperConfig):
    """Options of every trained baseline."""

    parameters: bool = False
    """Give the flow parameters to the model as constant channels."""
    mask: bool = False
    """Give the known points to the model as a channel, and the distances from moving bodies."""
    equation_terms: bool = False
    """Give the terms of the equations to the model as channels, as ``pibert-mr`` has them."""
    dmd_modes: int = 0
    """Correct the frame that DMD predicts with at most this many modes; 0: the last frame."""


def check_most(config: Any, limit: int, *names: str) -> None:
    """Limit numbers that no weight shape limits: a hostile model file could set them at will."""
    for name in names:
        if getattr(config, name) > limit:
            raise ValueError(f"{name} must be at most {limit}, found {getattr(config, name)}")


def check_multiple(config: Any, *divisors: str) -> None:
    """Check that the width is a multiple of other options."""
    for name in divisors:
        divisor = getattr(config, name)
        if config.width % divisor:
            raise ValueError(
                f"width must be a multiple of {name}, found {config.width} and {divisor}"
            )


class Stepper(nn.Module):
    """A model of the next frames; subclasses implement ``change``."""

    objective: ClassVar[Literal["supervised", "flow_matching", "pde_residual"]] = "supervised"
    """The training objective, by its name in ``pibert.training``."""
    takes_dmd: ClassVar[bool] = True
    """Whether it can correct the frame of DMD (``dmd_modes``) instead of the last frame."""

    def __init__(self, config: Any, spec: FieldSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.in_channels = config.history * len(spec.channels)
        self.out_channels = config.horizon * len(spec.channels)
        self.num_coordinates = count_coordinates(spec.grid)
        self.num_parameters = len(spec.parameters) if getattr(config, "parameters", False) else 0
        baseline = config if isinstance(config, BaselineConfig) else BaselineConfig()
        self._with_mask = baseline.mask
        self.terms = EquationTerms(spec, vorticity=True) if baseline.equation_terms else None
        self.num_inputs = self.in_channels + baseline.mask
        """Channels of prepared fields: what is known besides precedes the frames."""
        if self.terms is not None:
            self.num_inputs += self.terms.num_terms
        self.dmd_skip: nn.Module | None = None
        if modes := getattr(config, "dmd_modes", 0):
            # DMD is a Stepper itself.
            from pibert.models.references.dmd import DMDSkip

            if not (self.takes_dmd and config.residual):
                raise ValueError(
                    f"expected dmd_modes=0, found {modes}: {type(self).__name__} with residual="
                    f"{config.residual} does not correct a frame; leave it out"
                )
            self.dmd_skip = DMDSkip(modes, config.history, config.horizon, spec)
        self.motion: EquationOfMotion | None = None
        corrects_last = config.residual and self.dmd_skip is None
        if corrects_last and self.objective == "supervised" and spec.on_springs:
            self.motion = EquationOfMotion(spec)
        self.distance = BodyDistance(spec) if baseline.mask and spec.moving else None
        self.num_inputs += self.num_distances

    def prepare_for(self, stage: Literal["pretrain", "train"]) -> None:
        """Freeze or unfreeze modules before a training stage."""

    def calibrate(
        self,
        x: Float[Tensor, "n c y x"],
        normalizer: Normalizer | None = None,
        parameters: Float[Tensor, "n q"] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Set units and scales of terms and motion from standardised training samples."""
        for module in (self.motion, self.distance):
            if module is not None and normalizer is not None:
                module.set_normalizer(normalizer)
        if self.terms is not None:
            if normalizer is not None:
                self.terms.set_normalizer(normalizer)
            self.terms.calibrate(x[:, -len(self.spec.channels) :], known_points(mask, x))

    def forward(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Answer:
        """Return the next frames, standardised like the input.

        Args:
            x: Standardised fields, history folded into channels, the newest frame last.
            parameters: ``FieldSpec.encode_parameters``: at most 16, missing ones are zero, NaN
                means unknown. None: all unknown.
            mask: 1 at known points, 0 at unknown ones (M in the paper); (y, x), (b, y, x) or
                (b, 1, y, x). Unknown points enter as zero.
        """
        x = self.prepared(x, parameters, mask)
        change = self.change(x, self.parameter_vector(x, parameters))
        return self.with_motion(self.with_skip(change, x, mask), x, parameters)

    def with_skip(self, change: Answer, x: Tensor, mask: Tensor | None) -> Answer:
        """Return the frames that a change gives: of the last frame, or of the frame of DMD."""
        if not self.config.residual:
            return change
        if self.dmd_skip is not None:
            known = None if mask is None else checked_mask(mask, x)
            return self.dmd_skip(change, x[:, -self.in_channels :], known)
        return change + self.last_frame(x)

    def uniform_state(self, field: Answer, known: Tensor | None = None) -> Answer:
        """Return frames with the state of each as its mean over the (known) points."""
        if not self.spec.state:
            return field
        frames = field.unflatten(1, (-1, len(self.spec.channels)))
        known = None if known is None else known[:, None]
        return with_uniform_state(frames, len(self.spec.state), known).flatten(1, 2)

    def with_motion(self, field: Answer, x: Tensor, parameters: Tensor | None) -> Answer:
        """Return frames with a uniform state, in which bodies on springs obey Newton's law."""
        field = self.uniform_state(field)
        if self.motion is None:
            return field
        channels = len(self.spec.channels)
        frames = field.unflatten(1, (-1, channels))
        return self.motion(frames, x[:, -channels:], parameters).flatten(1, 2)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        """Return the change since the last frame, or without ``residual`` the frames.

        Args:
            x: From ``prepared``: ``num_inputs`` channels, zero at unknown points.
            parameters: Zero where unknown.
        """
        # Not abstract: PIBERT and the reference predictors override ``forward`` instead.
        raise NotImplementedError

    def last_frame(self, x: Tensor) -> Tensor:
        """Return the newest frame for every output frame: what persistence predicts."""
        return x[:, -len(self.spec.channels) :].repeat(1, self.config.horizon, 1, 1)

    def parameter_vector(self, x: Tensor, parameters: Tensor | None) -> Tensor:
        """Return the parameters as (b, 16), zero where unknown."""
        if parameters is None:
            return x.new_zeros(x.shape[0], PARAMETER_WIDTH)
        vector = torch.where(parameters.isnan(), 0.0, parameters).to(x.dtype)
        return F.pad(vector, (0, PARAMETER_WIDTH - vector.shape[-1]))

    def with_coordinates(self, x: Tensor) -> Tensor:
        """Append the coordinates of the points, ``num_coordinates`` channels."""
        coordinates = point_coordinates(self.spec.grid, (x.shape[-2], x.shape[-1]), x)
        return torch.cat((x, coordinates.expand(x.shape[0], -1, -1, -1)), dim=1)

    def with_parameters(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Append the parameters as constant channels if the option ``parameters`` is on."""
        if not self.num_parameters:
            return x
        constant = parameters[:, : self.num_parameters, None, None]
        return torch.cat((x, constant.expand(-1, -1, *x.shape[-2:])), dim=1)

    def check_size(self, shape: tuple[int, int]) -> None:
        """Raise a ValueError for a grid on which the model cannot run."""

    def prepared(self, x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        """Check the input, set unknown points to zero and prepend what the config asks for."""
        if not torch.compiler.is_compiling():
            self._check_types(x, parameters, mask)
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            remedies = {3: "add a batch axis: x[None]", 5: "fold the frames: x.flatten(1, 2)"}
            remedy = remedies.get(x.ndim, "pass the channels that the model was built for")
            raise ValueError(
                f"expected fields of shape (b, {self.in_channels}, y, x), found {tuple(x.shape)}; "
                f"the channels are {self.config.history} x {list(self.spec.channels)}, frame by "
                f"frame; {remedy}"
            )
        self.check_size((x.shape[-2], x.shape[-1]))
        if parameters is not None and (
            parameters.ndim != 2
            or parameters.shape[0] != x.shape[0]
            or parameters.shape[1] > PARAMETER_WIDTH
        ):
            raise ValueError(
                f"expected parameters of shape ({x.shape[0]}, at most {PARAMETER_WIDTH}), "
                f"found {tuple(parameters.shape)}"
            )
        if mask is not None:
            x = torch.where(checked_mask(mask, x), x, 0.0)
        if self.spec.state:
            x = self.uniform_state(x, known_points(mask, x))
        if not is_captured(x):
            _check_values(x, parameters)
        return self._informed(x, parameters, mask) if self.num_inputs > self.in_channels else x

    @property
    def num_distances(self) -> int:
        """Channels that ``distances`` returns."""
        times = 1 if self.motion is None else 2
        return 0 if self.distance is None else times * self.distance.num_channels

    def distances(self, x: Tensor, parameters: Tensor | None) -> list[Tensor]:
        """Return the distances of the points from moving bodies, now and after the step."""
        if self.distance is None:
            return []
        last = x[:, -len(self.spec.channels) :]
        found = [self.distance(last)]
        if self.motion is not None:  # after the step under the present force
            found.append(self.distance(self.motion(last[:, None], last, parameters)[:, 0]))
        return found

    def _informed(self, x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        """Prepend known points, equation terms of the newest frame and distances from bodies."""
        known = None if mask is None else known_points(mask, x)
        channels = [*self.distances(x, parameters), x]
        if self.terms is not None:
            frame = x[:, -len(self.spec.channels) :]
            channels.insert(0, self.terms(frame, known).to(x.dtype))
        if self._with_mask:
            all_known = torch.ones_like(x[:, :1])
            channels.insert(0, all_known if known is None else known[:, None].to(x.dtype))
        return torch.cat(channels, dim=1)

    def _check_types(self, x: Any, parameters: Any, mask: Any) -> None:
        """Check for tensors, and for fields in the precision of the weights unless autocast."""
        for name, value in {"fields": x, "parameters": parameters, "mask": mask}.items():
            if not isinstance(value, Tensor) and (value is not None or name == "fields"):
                raise ValueError(
                    f"expected {name} as a tensor, found {type(value).__name__}; convert them "
                    f"(torch.from_numpy), or use pibert.inference.Predictor, which takes arrays in "
                    f"physical units"
                )
        weight = next(self.parameters(), x)
        if weight.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"expected weights in float32 or float64, found {weight.dtype}: spectral sums need "
                f"the digits; for half precision run the model under torch.autocast"
            )
        expected = weight.dtype.to_real()  # spectral weights may be complex
        if x.dtype != expected and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"expected fields in {expected}, the precision of the weights, found {x.dtype}; "
                f"convert them: x.to({expected})"
            )


def checked_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Return the known points as bool of shape (y, x) or (b, 1, y, x)."""
    b, _, ny, nx = x.shape
    shapes = {2: (ny, nx), 3: (b, ny, nx), 4: (b, 1, ny, nx)}
    if shapes.get(mask.ndim) != tuple(mask.shape):
        raise ValueError(
            f"expected a mask of shape ({ny}, {nx}), ({b}, {ny}, {nx}) or "
            f"({b}, 1, {ny}, {nx}), found {tuple(mask.shape)}"
        )
    mask = mask != 0
    return mask[:, None] if mask.ndim == 3 else mask


def known_points(mask: Tensor | None, x: Tensor) -> Tensor:
    """Return the known points as bool of shape (b, y, x), for any form of the mask."""
    b, _, ny, nx = x.shape
    if mask is None:
        return torch.ones(b, ny, nx, dtype=torch.bool, device=x.device)
    return checked_mask(mask, x).expand(b, 1, ny, nx)[:, 0]


def zero(layer: nn.Module) -> None:
    """Set all weights of a layer to zero."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


def _check_values(x: Tensor, parameters: Tensor | None) -> None:
    if not bool(torch.isfinite(x).all()):
        index = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise ValueError(
            f"expected finite values, found {x[tuple(index)].item()} at (b, c, y, x) = "
            f"{tuple(index)}; pass a mask that is 0 at missing points"
        )
    if parameters is not None and bool(parameters.isinf().any()):
        raise ValueError("expected finite parameters, or NaN for unknown ones, found inf")
