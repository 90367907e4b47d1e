"""The input of a model: fields, mask and parameters of the caller, checked and standardised.

Results have the caller's kind of array. They have no batch axis where the input had none, and
always a time axis. ``labelled.py`` does the same for xarray.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Normalizer, Parameter, with_uniform_state
from pibert.inference.regridding import Regridding
from pibert.notes import Note
from pibert.rollout import MovingBodies

if TYPE_CHECKING:
    from pibert.inference.predictor import Predictor

Parameters = Mapping[str, Any]
"""Numbers, or arrays with one number per sample, by name."""
FAR = 50.0
"""Standard deviations from the training mean beyond which a note asks about the units."""
FAR_PARAMETER = 3.0
"""The same for a parameter whose training range is not recorded."""
MARGIN = 0.1
"""Accepted distance of a parameter from its training range, as a share of that range."""
Fields = TypeVar("Fields")
"""Frames in physical units as NumPy, torch or xarray; the result is of the same kind.

Arrays are (batch, history, channel, y, x), (history, channel, y, x) or, for a history of one frame,
(channel, y, x).
"""
Mask = Any
"""True where known: (y, x), (batch, y, x) or (batch, history, y, x), without the batch for one
sample; NumPy, torch or, with labelled fields, xarray."""


class Arrays:
    """Converts results to the caller's NumPy arrays or tensors.

    Results have a batch axis and are on the caller's grid.

    Args:
        is_numpy: Whether the input was a NumPy array.
        missing: Leading axes that the input lacks: 1, the batch; 2, the batch and the frames.
    """

    def __init__(self, is_numpy: bool, missing: int) -> None:
        self._is_numpy, self._missing = is_numpy, missing

    def frames(self, values: Float[Tensor, "b t c y x"], start: int) -> Any:
        """Predicted frames, of which ``start`` came before."""
        return self._convert(values, min(1, self._missing))

    def window(self, values: Float[Tensor, "b h c y x"]) -> Any:
        """Frames in place of the input."""
        return self._convert(values, self._missing)

    def map(self, values: Shaped[Tensor, "b ..."], axes: tuple[str, ...]) -> Any:
        """Values per sample; ``axes`` names those after the first."""
        return self._convert(values, min(1, self._missing))

    def _convert(self, values: Tensor, missing: int) -> Any:
        values = values[(0,) * missing]
        return values.numpy() if self._is_numpy else values


@dataclass(frozen=True, eq=False)
class Converted:
    """The input of the caller as tensors."""

    fields: Float[Tensor, "b h c y x"]
    """In the units of the spec."""
    known: Bool[Tensor, "b h y x"]
    grid: Grid | None
    """As the caller or the labels state it."""
    kind: Arrays
    notes: tuple[Note, ...] = ()


def convert_arrays(
    fields: Any, mask: Mask | None, grid: Grid | None, spec: FieldSpec, history: int
) -> Converted:
    """Arrays as a batch, checked for their type and shape."""
    values = as_tensor(fields, "fields")
    missing = 5 - values.ndim
    full = values[(None,) * missing] if missing in (1, 2) else values
    check_frames(full, spec, history, tuple(values.shape))
    kind = Arrays(isinstance(fields, np.ndarray), missing)
    return Converted(full, known_of(mask, full, missing > 0), grid, kind)


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor of the same type, in the machine's byte order; floating point, or bool of a mask."""
    allowed = ("bool",) if what == "the mask" else ("float32", "float64")
    if isinstance(values, Tensor):
        found = str(values.dtype).removeprefix("torch.")
    elif isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        found = values.dtype.newbyteorder("=").name
    else:
        raise ValueError(
            f"expected {what} as a NumPy array or a tensor (fields also as xarray), found "
            f"{type(values).__name__}; for missing values pass a mask that is False there"
        )
    if found not in allowed:
        remedy = "True where known" if what == "the mask" else "convert them"
        raise ValueError(f"expected {what} in {' or '.join(allowed)}, found {found}; {remedy}")
    if isinstance(values, Tensor):
        return values
    # A copy in the machine's byte order: files give arrays that are read-only or swapped.
    return torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), order="C"))


def check_frames(
    values: Tensor, spec: FieldSpec, history: int, shape: tuple[int, ...] | None = None
) -> None:
    """Raise unless this is a batch of windows; ``shape`` is that of the caller's array."""
    expected = (history, len(spec.channels))
    if values.ndim == 5 and values.shape[1:3] == expected and min(values.shape) > 0:
        return
    found = tuple(values.shape) if shape is None else shape
    remedy = "bring them to the model's frames and channels"
    if history == 1 and len(found) == 4 and found[1] == len(spec.channels):
        remedy = "a batch of single frames needs a time axis: fields[:, None]"
    elif values.ndim == 5 and values.shape[1] > history:
        remedy = f"give the {history} newest, the frames that the model takes"
    raise ValueError(
        "expected fields of shape (batch, history, channel, y, x) = (batch, "
        f"{', '.join(map(str, (*expected, *spec.grid.shape)))}), on this grid or another, without "
        f"the batch for one sample, with channels {list(spec.channels)}, found {found}; {remedy}"
    )


def known_of(
    mask: Mask | None, fields: Float[Tensor, "b h c y x"], is_single: bool
) -> Bool[Tensor, "b h y x"]:
    """A mask of every frame of a batch; ``is_single``: the input has no batch axis."""
    b, h, _, ny, nx = fields.shape
    if mask is None:
        return torch.ones(b, h, ny, nx, dtype=torch.bool, device=fields.device)
    known = as_tensor(mask, "the mask").to(fields.device)
    shapes = [(ny, nx), (h, ny, nx)] if is_single else [(ny, nx), (b, ny, nx), (b, h, ny, nx)]
    if tuple(known.shape) not in shapes:
        raise ValueError(
            f"expected a mask, True where known, of shape {' or '.join(map(str, shapes))}, found "
            f"{tuple(known.shape)}"
        )
    if known.ndim == 3 and not is_single:
        known = known[:, None]
    return known.expand(b, h, ny, nx)


class ModelInput:
    """The input of one call, and the conversion of results to its kind, grid, type and device.

    Args:
        predictor: Takes the last ``history`` frames.
        fields: The frames, of any kind.
        mask: True where they are known.
        parameters: Of the flow.
        grid: Of the fields; None: the labels' or the model's.
    """

    def __init__(
        self,
        predictor: "Predictor",
        fields: Any,
        mask: Mask | None,
        parameters: Parameters | None,
        grid: Grid | None,
    ) -> None:
        spec, normalizer = predictor.spec, predictor.normalizer
        converted = _convert(fields, mask, grid, spec, predictor.history)
        self.kind, self.fields, self.known = converted.kind, converted.fields, converted.known
        """Fields of the caller and where they are known, (b, history, y, x)."""
        self.spec, self._normalizer = spec, normalizer
        shape = (self.fields.shape[-2], self.fields.shape[-1])
        self.regridding = Regridding(shape, converted.grid, spec.grid)
        if spec.state and self.regridding.is_needed:
            raise ValueError(
                "expected fields on the grid in which the bodies of the model move, "
                f"{spec.grid.shape} points, found {shape}; resample them: pibert convert --size"
            )
        self.body = self.regridding.body().to(self.fields.device)
        """Of the caller's grid."""
        usable = self.known & ~self.body
        _check_values(self.fields, usable, spec)
        self.notes: list[Note] = [
            *converted.notes,
            *self.regridding.notes,
            *_far_values(self.fields, usable, spec, normalizer),
        ]
        # A batch that fits stays on the device between steps; a larger one where the fields are.
        fits = len(self.fields) <= predictor.chunk
        store = predictor.device if fits else self.fields.device
        self.on_model, usable = self.regridding.to_model(self.fields, usable)
        """Fields on the model's grid, in physical units."""
        if spec.grid.body is not None:
            usable = usable & ~spec.grid.body_on(usable.device)
        self.known_on_model: Bool[Tensor, "b h y x"] = usable
        self.seen: Bool[Tensor, "b y x"] = usable.all(1).to(store)
        """Points that the model sees: known in every frame, on its grid."""
        # Type before device: not every device has float64.
        self._window = normalizer.apply(self.on_model).float().to(store)
        self._check_standardised(spec)
        given = {} if parameters is None else parameters
        encoded = _encode(given, spec, len(self.fields))
        self.notes += unknown_parameters(spec, given)
        for index, parameter in enumerate(spec.parameters):
            self.notes += _far_parameter(parameter, encoded[:, index])
        self.parameters = encoded.to(store)

    def _check_standardised(self, spec: FieldSpec) -> None:
        """Raise for values that overflow single precision when they are standardised."""
        bad = ~self.standardised().isfinite()
        if not bool(bad.any()):
            return
        sample, _, channel, _, _ = bad.nonzero()[0].tolist()
        values = self.fields[sample, :, channel][self.known[sample]]
        largest = values[values.abs().argmax()].item()
        raise ValueError(
            "expected values that single precision can hold after standardisation, found "
            f"{largest:.4g} in sample {sample}, channel {spec.channels[channel]!r}; check the "
            "units, or pass a mask that is False at bad points"
        )

    def forget_input(self) -> None:
        """Free the input, which long rollouts do not need; results can still be converted."""
        self.fields = self.fields.new_empty(0)
        self.on_model, self._window = self.fields, self._window.new_empty(0)
        self.known = self.known_on_model = self.known.new_empty(0)

    def standardised(self) -> Float[Tensor, "b h c y x"]:
        """The fields as the model sees them."""
        return self.hidden(self._window)

    def hidden(self, z: Float[Tensor, "b h c y x"]) -> Float[Tensor, "b h c y x"]:
        """Standardised frames with zero where nothing is known."""
        return torch.where(self.seen[:, None, None], z, 0.0)

    def moving_bodies(self) -> MovingBodies | None:
        """The bodies that move with the predicted state; ValueError for one outside the domain."""
        moving = MovingBodies.of(self.spec, self._normalizer)
        if moving is not None:
            known = self.seen[:, None]
            window = with_uniform_state(self._window, moving.num_state, known)
            if (found := moving.find_outside(window)) is not None:
                sample, frame, text = found
                raise ValueError(
                    f"expected bodies inside the domain of the model, found sample {sample}, frame "
                    f"{frame}: {text}; check the unit of the state, or take another recording"
                )
        return moving

    def physical(self, z: Float[Tensor, "b t c y x"]) -> Float[Tensor, "b t c y x"]:
        """Standardised frames in the units, type and device of the fields, on the model's grid."""
        return self._normalizer.invert(z.to(self.fields.device).to(self.fields.dtype))

    def to_caller(self, frames: Float[Tensor, "b t c y x"]) -> Float[Tensor, "b t c y2 x2"]:
        """Finite frames on the caller's grid."""
        return self.regridding.to_caller(frames, self.seen.to(frames.device))

    def map(self, values: Tensor, *axes: str) -> Any:
        """Values per sample as the caller's kind of array, in the type of the fields."""
        # By way of the CPU, which has every type.
        return self.kind.map(values.cpu().to(self.fields.dtype).to(self.fields.device), axes)


def _convert(
    fields: Any, mask: Mask | None, grid: Grid | None, spec: FieldSpec, history: int
) -> Converted:
    xarray = sys.modules.get("xarray")  # not loaded: then this is none of its objects
    if xarray is not None and isinstance(fields, xarray.Dataset | xarray.DataArray):
        from pibert.inference.labelled import convert_labelled

        return convert_labelled(fields, mask, grid, spec, history)
    return convert_arrays(fields, mask, grid, spec, history)


def _check_values(fields: Tensor, usable: Tensor, spec: FieldSpec) -> None:
    bad = usable[:, :, None] & ~fields.isfinite()
    if bool(bad.any()):
        sample, frame, channel, row, column = index = bad.nonzero()[0].tolist()
        raise ValueError(
            f"expected finite values where the fields are known, found {fields[tuple(index)]:g} in "
            f"sample {sample}, frame {frame}, channel {spec.channels[channel]!r}, row {row}, "
            f"column {column}; pass a mask that is False at missing points"
        )


def _far_values(
    fields: Tensor, usable: Tensor, spec: FieldSpec, normalizer: Normalizer
) -> Iterator[Note]:
    """Notes on channels with values far from the training data."""
    distance = torch.where(usable[:, :, None], normalizer.apply(fields).abs(), 0.0)
    farthest = distance.amax((0, 1, 3, 4))
    for channel in (farthest > FAR).nonzero().flatten().tolist():
        farthest_point = distance[:, :, channel].flatten().argmax()
        value = fields[:, :, channel].flatten()[farthest_point].item()
        mean, std = normalizer.mean[channel], normalizer.std[channel]
        unit = "" if spec.units[channel] == "1" else f" {spec.units[channel]}"
        yield Note(
            "far-values",
            f"channel {spec.channels[channel]!r} holds {value:.4g}{unit}, "
            f"{farthest[channel].item():.0f} standard deviations from the training mean (most "
            f"values seen in training lie between {mean - 3 * std:.4g} and {mean + 3 * std:.4g})",
            "is it in other units?",
            subject=spec.channels[channel],
        )


def _far_parameter(parameter: Parameter, z: Float[Tensor, " b"]) -> Iterator[Note]:
    """A note on a value outside the training range; NaN is unknown."""
    z = z[z.isfinite()].double()
    if not len(z):
        return
    lowest, highest = parameter.lowest, parameter.highest
    if lowest is not None and highest is not None:
        few = 0.01 * abs(lowest) if lowest == highest else 0.0
        ends = torch.tensor((lowest - few, highest + few), dtype=torch.float64)
        low, high = parameter.standardise(ends).tolist()
        low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
        seen = f"{lowest:.5g} to {highest:.5g}" if highest > lowest else f"only {lowest:.5g}"
        where = f"outside the training range, {seen}"
    elif (parameter.mean, parameter.std) == (0.0, 1.0):
        return  # never fitted: nothing is known of the training
    else:
        low, high = -FAR_PARAMETER, FAR_PARAMETER
        ends = parameter.restore(torch.tensor((low, high), dtype=torch.float64))
        where = (
            f"{z.abs().max().item():.1f} standard deviations from the mean of the training values "
            f"(within {high:g} of them: {ends[0]:.5g} to {ends[1]:.5g})"
        )
    beyond = torch.maximum(low - z, z - high)
    if beyond.max() > 0:
        value = parameter.restore(z[beyond.argmax()]).item()
        yield Note(
            "far-parameter",
            f"parameter {parameter.name!r} is {value:.5g}, {where}: the prediction is an "
            "extrapolation",
            "check the value and its unit",
            subject=parameter.name,
        )


def unknown_parameters(
    spec: FieldSpec,
    given: Mapping[str, Any],
    how: str = "pass parameters={{{name!r}: NUMBER}}, or NaN if it is unknown",
) -> Iterator[Note]:
    """A note on parameters of the model that are not given; NaN states that one is unknown.

    Args:
        spec: Of the model.
        given: Parameters by name.
        how: What the caller writes to give the parameter ``name``.
    """
    if missing := [name for name in spec.parameter_names if name not in given]:
        text = f"no value of {', '.join(missing)} is given: the model predicts without it"
        yield Note("unknown-parameters", text, how.format(name=missing[0]))


def _encode(parameters: Any, spec: FieldSpec, batch: int) -> Float[Tensor, "b 16"]:
    columns: dict[str, float | Tensor] = {}
    if not isinstance(parameters, Mapping):
        names = ", ".join(spec.parameter_names) or "none"
        raise ValueError(
            f"expected parameters by name, such as {{'Re': 100.0}}, found "
            f"{type(parameters).__name__}; the model has: {names}"
        )
    for name, value in parameters.items():
        try:
            column = torch.as_tensor(value, dtype=torch.float32).cpu()
        except (TypeError, ValueError, RuntimeError):  # no number
            column = torch.tensor(torch.inf)
        if tuple(column.shape) not in ((), (1,), (batch,)) or bool(column.isinf().any()):
            raise ValueError(
                f"expected one finite number, or {batch} of them, for parameter {name!r}, found "
                f"{value!r}"
            )
        columns[name] = column.reshape(-1)
    encoded = spec.encode_parameters(columns)
    if bool(encoded.isinf().any()):
        raise ValueError(
            "expected parameters that single precision can hold after standardisation, found "
            f"{dict(parameters)!r:.200}; check the values and their units"
        )
    return encoded.expand(batch, -1)
