"""What a predictor is given: fields, mask and parameters, checked and brought to the model."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import FieldSpec, Normalizer

Fields = TypeVar("Fields", Float[Tensor, "b _ c y x"], Float[np.ndarray, "b _ c y x"])
"""Frames in physical units; what comes out is of the kind that went in."""
Mask = Bool[Tensor, "..."] | Bool[np.ndarray, "..."]
"""True where known: (y, x), (batch, y, x) or (batch, history, y, x)."""
Parameters = Mapping[str, Any]
"""Numbers, or arrays with one number per sample, by name."""


class Given:
    """The input of one call, and the way of the answers back to its kind, type and device."""

    def __init__(
        self,
        fields: Tensor | np.ndarray,
        mask: Mask | None,
        parameters: Parameters | None,
        *,
        spec: FieldSpec,
        normalizer: Normalizer,
        history: int,
        device: torch.device,
    ) -> None:
        self.is_array = isinstance(fields, np.ndarray)
        self.fields = _as_tensor(fields, "fields").detach()
        self._normalizer, self._device = normalizer, device
        _check_shape(self.fields, spec, history)
        self.body = torch.zeros(spec.grid.shape, dtype=torch.bool)
        if spec.grid.body is not None:
            self.body = spec.grid.body
        self.body = self.body.to(self.fields.device)
        self.known = _known(mask, self.fields)
        """(b, 1 or history, y, x), as the caller says it."""
        usable = self.known & ~self.body
        _check_values(self.fields, usable, spec)
        self.seen = usable.all(1).to(device)
        """(b, y, x): what the model may see in every frame."""
        self.parameters = _encode(parameters or {}, spec, len(self.fields)).to(device)

    def standardised(self) -> Float[Tensor, "b h c y x"]:
        """The fields as the model sees them, on its device."""
        # Type before device: not every device knows float64.
        return self.hidden(self._normalizer.apply(self.fields).float().to(self._device))

    def hidden(self, z: Float[Tensor, "b h c y x"]) -> Float[Tensor, "b h c y x"]:
        """Standardised frames with zero where nothing is known."""
        return torch.where(self.seen[:, None, None], z, 0.0)

    def physical(self, z: Float[Tensor, "b t c y x"]) -> Float[Tensor, "b t c y x"]:
        """Standardised frames in the units, type and place of the fields."""
        return self._normalizer.invert(z.to(self.fields.device).to(self.fields.dtype))

    def answer(self, values: Tensor) -> Any:
        """A result as the caller's kind of array, and of the type of the fields."""
        values = values.to(self.fields.device).to(self.fields.dtype)
        return values.numpy() if self.is_array else values


def _as_tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"expected {what} as a NumPy array or a tensor, found {type(values).__name__}; for "
            "missing values pass a mask that is False there"
        )
    # A copy in the machine's byte order: files give arrays that are read-only or swapped.
    return torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), order="C"))


def _check_shape(fields: Tensor, spec: FieldSpec, history: int) -> None:
    expected = (history, len(spec.channels), *spec.grid.shape)
    shape = tuple(fields.shape)
    if len(shape) != 5 or shape[1:] != expected or not shape[0]:
        raise ValueError(
            f"expected fields of shape (batch, history, channel, y, x) = (batch, "
            f"{', '.join(map(str, expected))}) with channels {list(spec.channels)}, found {shape}; "
            "bring them to the model's frames, channels and grid"
        )
    if fields.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"expected fields in float32 or float64, found {fields.dtype}; convert them"
        )


def _known(mask: Mask | None, fields: Tensor) -> Bool[Tensor, "b h y x"]:
    b, h, _, ny, nx = fields.shape
    if mask is None:
        return torch.ones(b, 1, ny, nx, dtype=torch.bool, device=fields.device)
    known = _as_tensor(mask, "the mask").to(fields.device)
    shapes = {2: (ny, nx), 3: (b, ny, nx), 4: (b, h, ny, nx)}
    if known.dtype != torch.bool or shapes.get(known.ndim) != tuple(known.shape):
        raise ValueError(
            f"expected a mask of bool, True where known, of shape {shapes[2]}, {shapes[3]} or "
            f"{shapes[4]}, found {known.dtype} of shape {tuple(known.shape)}"
        )
    return known if known.ndim == 4 else known.expand(b, ny, nx)[:, None]


def _check_values(fields: Tensor, usable: Tensor, spec: FieldSpec) -> None:
    bad = usable[:, :, None] & ~fields.isfinite()
    if bool(bad.any()):
        sample, frame, channel, row, column = place = bad.nonzero()[0].tolist()
        raise ValueError(
            f"expected finite values where the fields are known, found {fields[tuple(place)]:g} in "
            f"sample {sample}, frame {frame}, channel {spec.channels[channel]!r}, row {row}, "
            f"column {column}; pass a mask that is False at missing points"
        )


def _encode(parameters: Parameters, spec: FieldSpec, batch: int) -> Float[Tensor, "b 16"]:
    columns: dict[str, float | Tensor] = {}
    for name, value in parameters.items():
        column = torch.as_tensor(value, dtype=torch.float32).cpu()
        if tuple(column.shape) not in ((), (1,), (batch,)) or bool(column.isinf().any()):
            raise ValueError(
                f"expected one finite number, or {batch} of them, for parameter {name!r}, found "
                f"{value!r}"
            )
        columns[name] = column.reshape(-1)
    return spec.encode_parameters(columns).expand(batch, -1)
