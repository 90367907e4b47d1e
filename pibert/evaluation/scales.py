"""Errors scale by scale: after average pooling, and in the sub-bands of a Haar transform.

Pooling. Both fields are averaged over cells of k x k points, then NMSE is taken, k = 1, 2, 4, 8.

Haar. Three levels of the orthonormal transform; of four neighbours a b / c d (c, d in the row of
larger y)

    LL = (a + b + c + d) / 2     HL = (a - b + c - d) / 2
    LH = (a + b - c - d) / 2     HH = (a - b - c + d) / 2

where the first letter is of x, and the next level splits LL. (The published names seem to have the
letters the other way round.) Each channel's sub-band has an NMSE of its own: sum of squared errors
of coefficients over sum of squared true coefficients. Groups are plain means over bands and
channels: fine of all level-1 details, intermediate of all level-2 details, coarse of all four
bands of level 3. A band without energy has no NMSE, nor has its group.

LL3 is 8 times the average over 8 x 8 points, so the pooled NMSE of all channels at k = 8 is the
mean of their LL3 values weighted by energy.

Rows and columns that do not fill a cell, those of the largest y and x, are left out.

Unknown points. A pooled cell is the mean over its known points where at least half of them are
known, and is left out otherwise. A Haar coefficient that touches an unknown point is left out:
filling points would put edges into the truth and smoothness into the error.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.evaluation.components import SquaredErrors, known_values, ratio
from pibert.evaluation.measure import Entry, Frames
from pibert.fields import FieldSpec, Normalizer

SCALES = (1, 2, 4, 8)
LEVELS = 3
SMALLEST = 2**LEVELS
"""Rows and columns that the Haar transform needs."""
BANDS = ("LH1", "HL1", "HH1", "LH2", "HL2", "HH2", "LH3", "HL3", "HH3", "LL3")
GROUPS = {"coarse": BANDS[6:], "intermediate": BANDS[3:6], "fine": BANDS[:3]}


def pool(
    fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"], size: int
) -> tuple[Float[Tensor, "t c y2 x2"], Bool[Tensor, "t y2 x2"]]:
    """Means over the known points of cells, and which cells have at least half of theirs known."""
    share = F.avg_pool2d(known[:, None].double(), size)
    total = F.avg_pool2d(known_values(fields, known), size)
    return total / share.clamp(min=size**-2), share[:, 0] >= 0.5


def haar(
    fields: Float[Tensor, "*batch y x"],
) -> tuple[Float[Tensor, "*batch y2 x2"], ...]:
    """One level: LL, LH, HL, HH."""
    ny, nx = (size // 2 * 2 for size in fields.shape[-2:])
    fields = fields[..., :ny, :nx]
    lower, upper = fields[..., 0::2, :], fields[..., 1::2, :]
    low, high = lower + upper, lower - upper  # along y
    bands = (
        low[..., 0::2] + low[..., 1::2],
        high[..., 0::2] + high[..., 1::2],
        low[..., 0::2] - low[..., 1::2],
        high[..., 0::2] - high[..., 1::2],
    )
    return tuple(band / 2 for band in bands)


def _blocks(known: Bool[Tensor, "t y x"]) -> Bool[Tensor, "t y2 x2"]:
    """Whether all four neighbours are known."""
    ny, nx = (size // 2 * 2 for size in known.shape[-2:])
    rows = known[:, 0:ny:2] & known[:, 1:ny:2]
    return rows[..., 0:nx:2] & rows[..., 1:nx:2]


@dataclass(frozen=True, kw_only=True)
class PooledScales:
    """NMSE after average pooling, of every channel and of all."""

    spec: FieldSpec
    normalizer: Normalizer
    name: ClassVar[str] = "pooled_scales"
    of_sequences: ClassVar[bool] = False

    @property
    def scales(self) -> tuple[int, ...]:
        """The cell sizes that fit the grid."""
        return tuple(size for size in SCALES if size <= min(self.spec.grid.shape))

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(metric=f"scale_{size}_nmse", component=component)
            for size in self.scales
            for component in self._errors.components
        )

    @property
    def _errors(self) -> SquaredErrors:
        return SquaredErrors(spec=self.spec, normalizer=self.normalizer)

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        found = []
        for size in self.scales:
            prediction, where = pool(frames.prediction, frames.known, size)
            truth, _ = pool(frames.truth, frames.known, size)
            found.append(self._errors.terms(prediction, truth, where))
        return torch.cat(found, dim=1)

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        _, error, energy = self._errors.totals(sums.unflatten(-1, (len(self.scales), -1)))
        return ratio(error, energy).flatten(-2)


@dataclass(frozen=True, kw_only=True)
class HaarBands:
    """NMSE of every sub-band of every channel, and their groups."""

    spec: FieldSpec
    name: ClassVar[str] = "haar_bands"
    of_sequences: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if min(self.spec.grid.shape) < SMALLEST:
            raise ValueError(
                f"expected a grid of at least {SMALLEST} x {SMALLEST} points for {LEVELS} levels, "
                f"found {self.spec.grid.shape}; leave this measure out"
            )

    @property
    def entries(self) -> tuple[Entry, ...]:
        components = [f"{channel}_{band}" for channel in self.spec.channels for band in BANDS]
        return tuple(
            Entry(metric="haar_nmse", component=component) for component in (*components, *GROUPS)
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        known = frames.known
        truth = known_values(frames.truth, known)
        both = torch.stack((known_values(frames.prediction, known) - truth, truth))
        found = {}
        for level in range(1, LEVELS + 1):
            both, *details = haar(both)
            known = _blocks(known)
            for name, band in zip(("LL", "LH", "HL", "HH"), (both, *details), strict=True):
                squares = torch.where(known[:, None], band.square(), 0.0)
                found[f"{name}{level}"] = squares.sum((-2, -1))  # (2, t, c)
        return torch.stack([found[band] for band in BANDS]).permute(2, 3, 0, 1).flatten(1)

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        error, energy = sums.unflatten(-1, (len(self.spec.channels), len(BANDS), 2)).unbind(-1)
        nmse = ratio(error, energy)  # (*draws, c, band)
        groups = [
            torch.stack([nmse[..., BANDS.index(band)] for band in bands], dim=-1).mean((-2, -1))
            for bands in GROUPS.values()
        ]
        return torch.cat((nmse.flatten(-2), torch.stack(groups, dim=-1)), dim=-1)
