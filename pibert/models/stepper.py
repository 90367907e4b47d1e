"""What all models share: checked inputs, unknown points, and the skip from the last frame.

A model steps standardised fields (b, history * c, y, x), the newest frame last, to
(b, horizon * c, y, x). With ``residual`` it adds its answer to the last frame, and its last layer
starts at zero: an untrained one is persistence exactly.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import PARAMETER_WIDTH, FieldSpec
from pibert.models.layers import Answer, Fields, Mask, Parameters, Vector, constant, count


@dataclass(frozen=True, kw_only=True, slots=True)
class StepperConfig:
    """Options that every model has."""

    history: int = 1
    """Frames in, folded into channels, the newest last."""
    horizon: int = 1
    """Frames out, folded into channels."""
    residual: bool = True
    """Predict the change since the last frame instead of the frame itself."""

    def __post_init__(self) -> None:
        at_least_one(self, "history", "horizon")


def at_least_one(config: Any, *names: str) -> None:
    """Refuse counts below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, found {getattr(config, name)}")


def at_most(config: Any, limit: int, *names: str) -> None:
    """Refuse counts above a limit: of options that no shape of the weights keeps in bounds."""
    for name in names:
        if getattr(config, name) > limit:
            raise ValueError(f"{name} must be at most {limit}, found {getattr(config, name)}")


class Stepper(nn.Module):
    """A model of the next frames; a subclass says in ``change`` what it makes of the last ones.

    Args:
        config: Its options.
        spec: What the fields are.
        in_channels: If not history times the channels of the spec.
        out_channels: If not horizon times the channels of the spec.
    """

    objective: ClassVar[Literal["supervised", "flow_matching", "pde_residual"]] = "supervised"
    """How it is trained to step, by the name of the objective in ``pibert.training``."""
    embedded: ClassVar[str | None] = None
    """Which layer ``embed`` gives; None: the model has no map of hidden numbers."""

    def __init__(
        self,
        config: Any,
        spec: FieldSpec,
        in_channels: int | None = None,
        out_channels: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.in_channels = in_channels or config.history * len(spec.channels)
        self.out_channels = out_channels or config.horizon * len(spec.channels)

    def prepare_for(self, stage: Literal["pretrain", "train"]) -> None:
        """Called before a stage of learning; a model with frozen parts says here which."""

    def forward(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Answer:
        """The next frames, standardised as the input.

        Args:
            x: Standardised fields, history folded into channels, the newest frame last.
            parameters: ``FieldSpec.encode_parameters``; at most 16, missing ones are zero, NaN
                stands for unknown. None: nothing is known.
            mask: 1 where the field is known, 0 where it is not (as M in the paper); (y, x),
                (b, y, x) or (b, 1, y, x). Unknown pixels enter as zero.
        """
        x = self.prepared(x, parameters, mask)
        field = self.change(x, self.parameter_vector(x, parameters))
        return field + self.last_frame(x) if self.config.residual else field

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        """What the model makes of the fields: to be added to the last frame if ``residual``.

        Args:
            x: Checked, zero at unknown pixels.
            parameters: Zero where unknown.
        """
        # Not abstract: PIBERT and the reference predictors have a forward of their own instead.
        raise NotImplementedError

    def embed(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> Float[Tensor, "b d v w"] | None:
        """What the model holds of every point, or of every patch, before it answers.

        The layer that ``embedded`` names; None where there is none. Arguments as of ``forward``.
        """
        x = self.prepared(x, parameters, mask)
        return self.features(x, self.parameter_vector(x, parameters))

    def features(self, x: Fields, parameters: Parameters) -> Float[Tensor, "b d v w"] | None:
        """The map of ``embed``; arguments as of ``change``."""
        return None

    def last_frame(self, x: Tensor) -> Tensor:
        """What persistence predicts: the newest frame for every frame ahead."""
        frame = x[:, -len(self.spec.channels) :]
        repeats = -(-self.out_channels // frame.shape[1])
        if repeats > 1 and self.out_channels % frame.shape[1]:
            # Outputs beyond the known channels have nothing to persist: they start at zero.
            return F.pad(frame, (0, 0, 0, 0, 0, self.out_channels - frame.shape[1]))
        return frame.repeat(1, repeats, 1, 1)[:, : self.out_channels]

    def parameter_vector(self, x: Tensor, parameters: Tensor | None) -> Tensor:
        """(b, 16), zero where unknown."""
        if parameters is None:
            return x.new_zeros(x.shape[0], PARAMETER_WIDTH)
        vector = torch.where(parameters.isnan(), 0.0, parameters).to(x.dtype)
        return F.pad(vector, (0, PARAMETER_WIDTH - vector.shape[-1]))

    def check_size(self, shape: tuple[int, int]) -> None:
        """Raise a ValueError for a grid that the model cannot work on."""

    def prepared(self, x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        """Check the input and set unknown pixels to zero."""
        if not torch.compiler.is_compiling():
            self._check_types(x, parameters, mask)
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            remedies = {3: "add a batch axis: x[None]", 5: "fold the frames: x.flatten(1, 2)"}
            remedy = remedies.get(x.ndim, "give those that the model was built for")
            raise ValueError(
                f"expected fields of shape (b, {self.in_channels}, y, x), found {tuple(x.shape)}; "
                f"the channels are {self.in_channels // len(self.spec.channels)} x "
                f"{list(self.spec.channels)}, frame by frame; {remedy}"
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
        if not _is_captured(x):
            _check_values(x, parameters)
        return x

    def _check_types(self, x: Any, parameters: Any, mask: Any) -> None:
        """Tensors, fields in the precision of the weights; under autocast in any."""
        given = {"fields": x, "parameters": parameters, "mask": mask}
        for name, value in given.items():
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
        expected = weight.dtype.to_real()  # spectral weights are complex
        if x.dtype != expected and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"expected fields in {expected}, the precision of the weights, found {x.dtype}; "
                f"convert them: x.to({expected})"
            )


def checked_mask(mask: Tensor, x: Tensor) -> Tensor:
    """The known pixels as bool of shape (y, x) or (b, 1, y, x)."""
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
    """The known points as bool of shape (b, y, x), in whichever form the mask was given."""
    b, _, ny, nx = x.shape
    if mask is None:
        return torch.ones(b, ny, nx, dtype=torch.bool, device=x.device)
    return checked_mask(mask, x).expand(b, 1, ny, nx)[:, 0]


@constant
def unit_coordinates(ny: int, nx: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Of the cell centres: x and y, both from 0 to 1 over the grid: (1, 2, y, x)."""
    y = (count(0, ny, device=device) + 0.5) / ny
    x = (count(0, nx, device=device) + 0.5) / nx
    return torch.stack((x.expand(ny, nx), y[:, None].expand(ny, nx)))[None].to(dtype)


def with_coordinates(x: Tensor, parameters: Tensor | None = None) -> Tensor:
    """The fields with x, y and, where given, parameters (b, q) as further channels."""
    b, _, ny, nx = x.shape
    places = unit_coordinates(ny, nx, device=x.device, dtype=x.dtype).expand(b, -1, -1, -1)
    parts = [x, places]
    if parameters is not None:
        parts.append(parameters[:, :, None, None].expand(-1, -1, ny, nx))
    return torch.cat(parts, dim=1)


def zero(layer: nn.Module) -> None:
    """Let a layer start at zero."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


def _is_captured(x: Tensor) -> bool:
    """Whether the work is being recorded, which cannot branch on values: the caller checks them."""
    if torch.compiler.is_compiling():
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _check_values(x: Tensor, parameters: Tensor | None) -> None:
    if not bool(torch.isfinite(x).all()):
        where = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise ValueError(
            f"expected finite values, found {x[tuple(where)].item()} at (b, c, y, x) = "
            f"{tuple(where)}; pass a mask that is 0 at missing pixels"
        )
    if parameters is not None and bool(parameters.isinf().any()):
        raise ValueError("expected finite parameters, or NaN for unknown ones, found inf")
