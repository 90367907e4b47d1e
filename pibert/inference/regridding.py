"""Resampling between the caller's grid and the model's, and notes on how the two differ.

The caller's domain is laid over the model's, side on side, whatever their sizes: where those
differ, the model sees the flow at another scale. Origins do not count.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.resample import Resizer
from pibert.fields import Boundary, Grid
from pibert.notes import Note

TOLERANCE = 0.01
"""Relative: sizes that differ by less, as with rounded coordinates, count as equal."""


class Regridding:
    """Fields of the caller on the model's grid, and results on the caller's.

    Args:
        shape: Rows and columns of the fields.
        stated: The grid that the caller states, if any.
        model: The grid of the model.
    """

    def __init__(self, shape: tuple[int, int], stated: Grid | None, model: Grid) -> None:
        if stated is not None and stated.shape != shape:
            raise ValueError(
                f"expected fields on the grid of {_points(stated.shape)} points that was given, "
                f"found {_points(shape)}"
            )
        (ny, nx), (my, mx) = shape, model.shape
        self.caller = stated or Grid(shape, model.dx * mx / nx, model.dy * my / ny, model.sides)
        self.model = model
        self.is_needed = shape != model.shape
        if self.is_needed:
            # Sides of the model: they state whether the field continues across an edge.
            self._to_model = Resizer(Grid(shape, sides=model.sides), model.shape)
            self._to_caller = Resizer(Grid(model.shape, sides=model.sides), shape)
        self.notes = list(self._notes(stated is None))

    def body(self) -> Bool[Tensor, "y x"]:
        """Points of the caller's grid in the body that it states, or that the model's grid does."""
        body = torch.zeros(self.caller.shape, dtype=torch.bool)
        if self.caller.body is not None:
            body = body | self.caller.body
        if self.model.body is not None:
            resize = self._to_caller.resize_body if self.is_needed else lambda body: body
            body = body | resize(self.model.body)
        return body

    def to_model(
        self, fields: Float[Tensor, "b h c y x"], known: Bool[Tensor, "b h y x"]
    ) -> tuple[Float[Tensor, "b h c y2 x2"], Bool[Tensor, "b h y2 x2"]]:
        """Fields, and where they are known: at points with half of their cell known."""
        if not self.is_needed:
            return fields, known
        values = _resized(self._to_model, fields.flatten(0, 1), known.flatten(0, 1))
        enough = self._to_model.resize_valid(known.cpu(), None).to(known.device)
        return values.unflatten(0, fields.shape[:2]), enough

    def to_caller(
        self,
        frames: Float[Tensor, "b t c y x"],
        seen: Bool[Tensor, "b y x"],
        *,
        bounded: bool = False,
    ) -> Float[Tensor, "b t c y2 x2"]:
        """Frames; values at points that the model did not see are used only beside no others.

        Args:
            frames: On the model's grid, finite.
            seen: The points that the model saw.
            bounded: Stay within the range of the frames, as widths of intervals must.
        """
        if not self.is_needed:
            return frames
        flat = frames.flatten(0, 1)
        known = seen[:, None].expand(frames.shape[:2] + seen.shape[1:]).flatten(0, 1)
        values = _resized(self._to_caller, flat, known, bounded)
        if not bool(known.all()):
            everything = _resized(self._to_caller, flat, torch.ones_like(known), bounded)
            values = torch.where(values.isnan(), everything, values)
        return values.unflatten(0, frames.shape[:2])

    def map_to_caller(
        self, values: Float[Tensor, "b y x"], defined: Bool[Tensor, "b y x"]
    ) -> Float[Tensor, "b y2 x2"]:
        """A map over points; NaN where it is not defined."""
        if not self.is_needed:
            return torch.where(defined, values, torch.nan)
        return _resized(self._to_caller, values[:, None], defined)[:, 0]

    def _notes(self, is_assumed: bool) -> Iterator[Note]:
        """Notes on how the two grids differ; ``is_assumed``: the caller stated none."""
        caller, model = self.caller, self.model
        (height, width), (model_height, model_width) = _extent(caller), _extent(model)
        if self.is_needed:
            rows, columns = (min(a, b) for a, b in zip(caller.shape, model.shape, strict=True))
            yield Note(
                "resampled",
                f"fields on {_points(caller.shape)} points (rows x columns) are resampled to the "
                f"model's {_points(model.shape)} and results back: structures smaller than two "
                f"cells of the coarser grid ({2 * width / columns:.3g} in x, "
                f"{2 * height / rows:.3g} in y) are lost",
            )
        if self.is_needed and is_assumed:
            yield Note(
                "spacing-assumed",
                "no spacing is stated: assuming that the points cover the model's domain, "
                f"{width:.4g} x {height:.4g} (width x height)",
                "pass grid=pibert.Grid(...)",
            )
        fx, fy = width / model_width, height / model_height
        if not all(math.isclose(factor, 1, rel_tol=TOLERANCE) for factor in (fx, fy)):
            text = (
                f"the domain of the fields, {width:.4g} x {height:.4g} (width x height, cells of "
                f"{caller.dx:.4g} x {caller.dy:.4g}), differs in size from the model's training "
                f"domain, {model_width:.4g} x {model_height:.4g} (cells of {model.dx:.4g} x "
                f"{model.dy:.4g}): the model sees the flow at another scale, lengths divided by "
                f"{fx:.4g} in x and {fy:.4g} in y"
            )
            if not math.isclose(fx, fy, rel_tol=TOLERANCE):
                text += ", so its shapes are distorted"
            yield Note("domain-size", text)
        if caller.sides != model.sides and set(caller.sides) != {Boundary.OPEN}:  # open: not stated
            yield Note(
                "boundaries",
                f"the sides of the fields (left, right, bottom, top) are {', '.join(caller.sides)},"
                f" those of the model's training data {', '.join(model.sides)}",
            )


def _resized(resizer: Resizer, values: Tensor, known: Tensor, bounded: bool = False) -> Tensor:
    device = values.device
    if device.type == "mps":  # which has no double precision
        values, known = values.cpu(), known.cpu()
    return (resizer.average if bounded else resizer.resize)(values, known).to(device)


def _extent(grid: Grid) -> tuple[float, float]:
    """Height and width: a point stands for the cell around it."""
    return grid.shape[0] * grid.dy, grid.shape[1] * grid.dx


def _points(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"
