"""Classical ways to fill gaps in a field, and what a model's reconstruction is worth next to them.

Each takes fields (*batch, c, y, x) and the points that are known, (*batch, y, x), fills every frame
and channel by itself, and gives known values back as they are.

- mean: the mean of the known points;
- laplace: a stretched membrane. It minimises sum (f_x)^2 + (f_y)^2 over forward differences;
- biharmonic: a thin plate, free at its sides. It minimises the bending energy
  sum f_xx^2 + 2 f_xy^2 + f_yy^2, f_xx and f_yy from three points in a row, f_xy from the four
  corners of a cell. Away from the sides that is lap lap f = 0 in its stencil of thirteen points,
  which every cubic polynomial satisfies; linear ones are kept at the sides too;
- cubic: piecewise cubic polynomials over a Delaunay triangulation of the known points with
  continuous slopes (Clough and Tocher), and beyond its hull the nearest known point.

Membrane and plate close over periodic sides. All but the mean need SciPy.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import Batch, FieldSpec, Grid, Normalizer

Fields = Float[Tensor, "*batch c y x"]
Known = Bool[Tensor, "*batch y x"]
Filling = Callable[[Tensor, Tensor, Grid], Tensor]
"""(fields, known, grid) -> filled fields."""

MODEL = "model"
"""The name of the model's own reconstruction among the methods."""
MODES = "modes"
"""The name of what a model with modes of its training fields starts from (gappy POD)."""


def fill_mean(fields: Fields, known: Known, grid: Grid) -> Fields:
    """The mean of the known points of each frame and channel; zero if there are none."""
    here = known.unsqueeze(-3)
    count = here.sum((-2, -1), keepdim=True).clamp(min=1)
    # Summed in double precision: values far from zero would lose digits.
    mean = torch.where(here, fields, 0.0).double().sum((-2, -1), keepdim=True) / count
    return torch.where(here, fields, mean.to(fields.dtype))


def fill_laplace(fields: Fields, known: Known, grid: Grid) -> Fields:
    """A membrane through the known points."""
    return _fill(fields, known, _relaxed(grid, _membrane))


def fill_biharmonic(fields: Fields, known: Known, grid: Grid) -> Fields:
    """A thin plate through the known points."""
    return _fill(fields, known, _relaxed(grid, _plate))


def fill_cubic(fields: Fields, known: Known, grid: Grid) -> Fields:
    """Piecewise cubic interpolation between the known points."""
    return _fill(fields, known, _cubic(grid))


FILLINGS: dict[str, Filling] = {
    "mean": fill_mean,
    "laplace": fill_laplace,
    "cubic": fill_cubic,
    "biharmonic": fill_biharmonic,
}


@dataclass(frozen=True, kw_only=True)
class FillingError:
    """The error of one method over some hidden points; errors of several batches add up."""

    squares: tuple[float, ...]
    """Sum of the squared errors of each channel, standardised."""
    count: int
    """Values of each channel that were compared."""
    scales: tuple[float, ...]
    """Return one standardised unit of each channel."""

    @property
    def standardised(self) -> float:
        """Root mean square over all channels, in standardised units."""
        return math.sqrt(sum(self.squares) / max(1, self.count * len(self.squares)))

    @property
    def physical(self) -> tuple[float, ...]:
        """Root mean square of each channel, in its unit."""
        count = max(1, self.count)
        return tuple(
            scale * math.sqrt(square / count)
            for square, scale in zip(self.squares, self.scales, strict=True)
        )

    def __add__(self, other: "FillingError") -> "FillingError":
        if self.scales != other.scales:
            raise ValueError(f"expected errors of equal scales, found {self} and {other}")
        both = zip(self.squares, other.squares, strict=True)
        return replace(self, squares=tuple(map(sum, both)), count=self.count + other.count)


@torch.no_grad()
def filling_errors(
    model: nn.Module,
    batch: Batch,
    hidden: Bool[Tensor, "b y x"],
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    truth: Float[Tensor, "b hc y x"] | None = None,
    methods: Mapping[str, Filling] = FILLINGS,
) -> dict[str, FillingError]:
    """Hide the same points from a model and from classical methods, and compare how they fill them.

    Args:
        model: Has ``reconstruct``; the hidden points are unknown to it.
        batch: Gives the fields and what is known of them.
        hidden: Where to compare; unknown and filled points of the batch do not count.
        spec: Of the input channels.
        normalizer: Of the input channels.
        truth: What to compare with, standardised; the batch's own fields if not given. A recording
            with noise has no better truth than itself, a simulated measurement has.
        methods: By name.
    """
    hidden = hidden & batch.mask
    if batch.filled is not None:
        hidden = hidden & ~batch.filled
    target = batch.x if truth is None else truth
    found = fill_hidden(model, batch, hidden, spec, methods=methods)
    return {
        name: filling_error(answer, target, hidden, normalizer) for name, answer in found.items()
    }


@torch.no_grad()
def fill_hidden(
    model: nn.Module,
    batch: Batch,
    hidden: Bool[Tensor, "b y x"],
    spec: FieldSpec,
    *,
    methods: Mapping[str, Filling] = FILLINGS,
) -> dict[str, Float[Tensor, "b hc y x"]]:
    """Fill the hidden points with the model and with each classical method.

    If the model starts from POD modes of its training fields, these are also scored on their own.
    """
    left = batch.mask & ~hidden
    seen = torch.where(left[:, None], batch.x, 0.0)
    was_training = model.training
    answer = cast(Any, model.eval()).reconstruct(seen, batch.parameters, left)
    model.train(was_training)
    answers = {MODEL: answer}
    modes = getattr(model, "pod_modes", None)
    if modes is not None:
        answers[MODES] = torch.where(left[:, None], seen, modes(seen, left))
    return answers | {name: fill(seen, left, spec.grid) for name, fill in methods.items()}


def filling_error(
    answer: Float[Tensor, "b hc y x"],
    target: Float[Tensor, "b hc y x"],
    hidden: Bool[Tensor, "b y x"],
    normalizer: Normalizer,
) -> FillingError:
    """The error of an answer at the hidden points; both standardised."""
    channels = len(normalizer.mean)
    wrong = torch.where(hidden[:, None], answer - target, 0.0).double().square()
    return FillingError(
        squares=tuple(wrong.unflatten(1, (-1, channels)).sum((0, 1, 3, 4)).tolist()),
        count=int(hidden.sum()) * (target.shape[1] // channels),
        scales=normalizer.std,
    )


def _fill(fields: Tensor, known: Tensor, fill_frame: Callable[..., np.ndarray]) -> Tensor:
    """Fill frame by frame: ``fill_frame(values (known, c), known (y, x))`` gives (unknown, c)."""
    c, ny, nx = fields.shape[-3:]
    frames = fields.detach().reshape(-1, c, ny, nx)
    masks = known.expand(*fields.shape[:-3], ny, nx).reshape(-1, ny, nx).cpu().numpy()
    filled = frames.clone()
    for index, here in enumerate(masks):
        if here.all():
            continue
        if not here.any():
            raise ValueError("expected at least one known point in every frame, found none")
        values = frames[index].cpu().double().numpy()[:, here].T
        if not np.isfinite(values).all():
            raise ValueError("expected finite values at known points, found NaN or infinity")
        missing = torch.from_numpy(~here).to(filled.device)
        answer = torch.from_numpy(np.ascontiguousarray(fill_frame(values, here).T))
        filled[index][:, missing] = answer.to(filled)
    return filled.view(fields.shape)


def _cubic(grid: Grid) -> Callable[..., np.ndarray]:
    interpolate = _scipy("interpolate")

    def fill_frame(values: np.ndarray, known: np.ndarray) -> np.ndarray:
        step = np.array([grid.dy, grid.dx]) / grid.cell_length
        have, wanted = np.argwhere(known) * step, np.argwhere(~known) * step
        nearest = interpolate.NearestNDInterpolator(have, values)(wanted)
        if np.linalg.matrix_rank(have - have[0]) < 2:
            return nearest  # too few points, or all in one line: there is no triangle
        cubic = interpolate.CloughTocher2DInterpolator(have, values)(wanted)
        return np.where(np.isnan(cubic), nearest, cubic)

    return fill_frame


def _relaxed(grid: Grid, energy: Callable[[Grid, int, int], Any]) -> Callable[..., np.ndarray]:
    """The field of least energy, a quadratic form of all points, through the known ones."""
    linalg = _scipy("sparse.linalg")
    forms: dict[tuple[int, ...], Any] = {}

    def fill_frame(values: np.ndarray, known: np.ndarray) -> np.ndarray:
        shape = (known.shape[0], known.shape[1])
        if shape not in forms:
            forms[shape] = energy(grid, *shape)
        unknown, known = ~known.ravel(), known.ravel()
        # Taken relative to the mean: the known points may leave a plane free, which then is level.
        mean = values.mean(0)
        rows = forms[shape][unknown]
        matrix = rows[:, unknown].tocsc()
        matrix.setdiag(matrix.diagonal() * (1 + 1e-13) + 1e-13)
        solve = linalg.splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
        return solve.solve(-(rows[:, known] @ (values - mean))) + mean

    return fill_frame


def _membrane(grid: Grid, ny: int, nx: int) -> Any:
    (slope_y, _), (slope_x, _) = _differences(grid, ny, nx)
    kron, eye = _scipy("sparse").kron, _scipy("sparse").identity
    parts = (kron(slope_y, eye(nx)), kron(eye(ny), slope_x))
    return sum(part.T @ part for part in parts).tocsr()


def _plate(grid: Grid, ny: int, nx: int) -> Any:
    (slope_y, bend_y), (slope_x, bend_x) = _differences(grid, ny, nx)
    kron, eye = _scipy("sparse").kron, _scipy("sparse").identity
    bent = (kron(bend_y, eye(nx)), kron(eye(ny), bend_x))
    twist = kron(slope_y, slope_x)
    return (sum(part.T @ part for part in bent) + 2 * twist.T @ twist).tocsr()


def _differences(grid: Grid, ny: int, nx: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """First and second differences along y and x in units of the cell length."""
    step_y, step_x = grid.dy / grid.cell_length, grid.dx / grid.cell_length
    return _along(ny, step_y, grid.periodic_y), _along(nx, step_x, grid.periodic_x)


def _along(count: int, step: float, periodic: bool) -> tuple[Any, Any]:
    sparse = _scipy("sparse")
    size = count if periodic else max(count - 1, 0)
    rows = np.repeat(np.arange(size), 2)
    columns = (rows + np.tile([0, 1], size)) % count
    weights = np.tile([-1.0, 1.0], size) / step
    slope = sparse.csr_matrix((weights, (rows, columns)), shape=(size, count))
    size = count if periodic else max(count - 2, 0)
    rows = np.repeat(np.arange(size), 3)
    columns = (rows + np.tile([0, 1, 2], size)) % count
    weights = np.tile([1.0, -2.0, 1.0], size) / step**2
    return slope, sparse.csr_matrix((weights, (rows, columns)), shape=(size, count))


def _scipy(part: str) -> Any:
    try:
        return importlib.import_module(f"scipy.{part}")
    except ImportError as error:
        raise ImportError(
            "filling by interpolation needs SciPy: pip install 'pibert-cfd[io]'"
        ) from error
