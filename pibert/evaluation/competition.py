"""Scores of the RealPDE competition (NeurIPS 2026, track 1): 20 frames from 20, on 32 x 64 points.

A window is y, the truth, and q, the prediction, of u and v. Each e is a mean over windows:

    competition_rel_l2   e = |q - y| / |y|
    competition_tke      e = |k_q - k_y| / |k_y|, k = (var_t u + var_t v) / 2 at each point
    competition_mvpe     e = |m_q - m_y| / |m_y|, m the mean in time at nine rows of a column; mean
                         of four columns
    competition_sps      see below

The first three are 100 / (1 + e / 2). The safe prediction score (SPS) rewards narrow intervals that
hold the truth. The reward of a value inside its interval is w exp(-(upper - lower) / sigma), of one
outside it is zero; w = 0.5 a(rel_l2) + 0.3 a(tke) + 0.2 a(mvpe) with a(e) = 0.5 / (0.5 + e) of
its window. The score is 100 times the mean over all values that are not zero in the truth. Entries
without intervals get q -+ 0.05 |q|, as ``terms`` does; ``window_terms`` takes other intervals.

The score for time is left out, since it needs the organisers' machine, and so is the final score,
whose weights are not published. Source: an entrant's notes on version 9 of the starter kit
(github.com/pranay172/realpde-track1). Unknown points count as zero in truth and prediction.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.measure import ALL, Entry, Frames, Measure, ratio, require_velocity

SHAPE = (32, 64)
"""Rows and columns of the competition's fields."""
COLUMNS = (13, 21, 29, 37)
ROWS = tuple(range(8, 25, 2))
SIGMA = 0.0563870259
"""In m/s."""
BAND = 0.05
"""Half width of the interval of an entry without one, as a share of its prediction."""
_WEIGHTS = (0.5, 0.3, 0.2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Competition(Measure):
    """The scores of whole windows; frames are those of one window."""

    name: ClassVar[str] = "competition"
    of_sequences: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_velocity(self.spec, "the competition's scores")
        if self.spec.grid.shape != SHAPE:
            raise ValueError(
                f"expected fields of {SHAPE[0]} x {SHAPE[1]} points for the competition's scores, "
                f"found {self.spec.grid.shape}; take every second point: "
                "--set data.NAME.options.every=2"
            )

    @property
    def entries(self) -> tuple[Entry, ...]:
        scores = ("rel_l2", "tke", "mvpe", "sps")
        return tuple(
            Entry(metric=f"competition_{score}", component=ALL, better="higher") for score in scores
        )

    def terms(self, frames: Frames) -> Float[Tensor, "1 k"]:
        """The terms of one window, with the interval of an entry that gives none."""
        assert self.spec.velocity is not None
        y, q = (
            torch.where(frames.known[:, None], fields.double(), 0.0)[:, list(self.spec.velocity)]
            for fields in (frames.truth, frames.prediction)
        )
        return self.window_terms(y, q, q - BAND * q.abs(), q + BAND * q.abs())

    def window_terms(
        self,
        truth: Float[Tensor, "t 2 y x"],
        prediction: Float[Tensor, "t 2 y x"],
        lower: Float[Tensor, "t 2 y x"],
        upper: Float[Tensor, "t 2 y x"],
    ) -> Float[Tensor, "1 k"]:
        """The terms of one window of u and v: windows, three errors, rewards, values."""
        y, q = truth.double(), prediction.double()
        k_y, k_q = (0.5 * f.var(0, correction=0).sum(0) for f in (y, q))
        m_y, m_q = (f.mean(0)[:, list(ROWS)][:, :, list(COLUMNS)] for f in (y, q))
        errors = torch.stack(
            [
                _relative(y, q, (0, 1, 2, 3)),
                _relative(k_y, k_q, (0, 1)),
                _relative(m_y, m_q, (0, 1)).mean(),
            ]
        )
        accuracy = (errors.new_tensor(_WEIGHTS) * 0.5 / (0.5 + errors)).sum()
        inside = (lower <= truth) & (truth <= upper) & (truth != 0)
        reward = torch.where(inside, torch.exp(-(upper - lower) / SIGMA), 0.0).sum()
        one, values = torch.ones_like(accuracy), (truth != 0).sum().to(accuracy)
        return torch.stack([one, *errors, accuracy * reward, values])[None]

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN where undefined."""
        windows, rel_l2, tke, mvpe, reward, count = sums.unbind(-1)
        scores = [100 / (1 + 0.5 * ratio(error, windows)) for error in (rel_l2, tke, mvpe)]
        return torch.stack([*scores, 100 * ratio(reward, count)], dim=-1)


def _relative(truth: Tensor, prediction: Tensor, axes: tuple[int, ...]) -> Tensor:
    difference, size = (field.square().sum(axes).sqrt() for field in (prediction - truth, truth))
    return difference / size
