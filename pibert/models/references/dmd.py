"""DMD: the global linear operator between training states, as a reference predictor.

    x'_{t+s} = Phi A^s Phi^T x'_t,     A = argmin sum_t | Phi^T x'_{t+1} - A Phi^T x'_t |^2

x' is the fluctuation about the training mean, zero at unknown points, in standardised units. Phi
are the leading POD modes of the training inputs, orthonormal. What a state has outside them is
lost: there the mean is predicted. With a history of several frames the state is all of them (delay
coordinates), and the newest frame of the next state is the answer. Dynamic mode decomposition:
Schmid (2010); as a regression on pairs of states: Tu et al. (2014). Growing directions are left as
they were found.

The training states pass by once, after a pass for the mean. An incremental singular value
decomposition carries twice as many directions as are wanted, and the sums of the regression turn
with them: exact while the data have no more directions than that, close beyond.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.models.references.simple import AboutTheMean, ReferenceConfig
from pibert.models.stepper import at_least_one


@dataclass(frozen=True, kw_only=True, slots=True)
class DMDConfig(ReferenceConfig):
    """Options of ``DMD``."""

    rank: int = 64
    """POD modes to keep, at most; fewer where the data have fewer directions."""
    energy: float | None = None
    """Keep the fewest modes that hold this part of the variance; None: as many as ``rank``."""

    def __post_init__(self) -> None:
        ReferenceConfig.__post_init__(self)
        at_least_one(self, "rank")
        if self.energy is not None and not 0 < self.energy <= 1:
            raise ValueError(f"energy must be in (0, 1] or None, found {self.energy}")


PRESETS: dict[str, DMDConfig] = {"base": DMDConfig()}


class DMD(AboutTheMean):
    """Steps the coordinates of a state in its leading POD modes by a matrix."""

    modes: Float[Tensor, "r hc y x"]
    """Orthonormal, the strongest first; zero beyond those that were kept."""
    operator: Float[Tensor, "r r"]

    def __init__(self, config: DMDConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        state = (self.in_channels, *spec.grid.shape)
        rank = min(config.rank, self.mean.numel() * config.history)
        self.register_buffer("modes", torch.zeros(rank, *state))
        self.register_buffer("operator", torch.zeros(rank, rank))

    def fit(self, batches: Iterable[Batch], normalizer: Normalizer) -> None:
        if iter(batches) is batches:
            raise ValueError(
                "DMD expected batches that can be read twice, such as a list or a loader, found "
                "an iterator"
            )
        self._fit_mean(batches)
        rank = len(self.modes)
        states = States(self.modes[0].numel(), 2 * rank, self.modes.device)
        for before, after in _gathered(self._pairs(batches), 2 * rank):
            states.add(before, after)
        modes, operator = states.reduce(rank, self.config.energy)
        self.modes.zero_()[: len(modes)] = modes.view(-1, *self.modes.shape[1:]).to(self.modes)
        self.operator.zero_()[: len(modes), : len(modes)] = operator.to(self.operator)
        self._mark_fitted()

    def _pairs(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """States and the states one frame later, (b, d) in float64."""
        for batch in self._checked(batches):
            before = self._fluctuation(batch.x, batch.mask[:, None])
            newest = self._fluctuation(batch.y[:, 0], batch.target_mask[:, :1])
            after = torch.cat((before[:, len(self.mean) :], newest), dim=1)
            yield before.flatten(1).double(), after.flatten(1).double()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        modes, frame = self.modes.flatten(1), self.mean.numel()
        coordinates = self._fluctuation(x, known).flatten(1) @ modes.mT
        frames = []
        for _ in range(self.config.horizon):
            coordinates = coordinates @ self.operator.mT
            fluctuation = coordinates @ modes[:, -frame:]
            frames.append(self.mean + fluctuation.unflatten(1, self.mean.shape))
        return torch.cat(frames, dim=1)


def _gathered(
    pairs: Iterator[tuple[Tensor, Tensor]], least: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs in larger pieces, as each piece costs a decomposition."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for pair in pairs:
        waiting.append(pair)
        if sum(len(before) for before, _ in waiting) >= least:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    before, after = zip(*pairs, strict=True)
    return torch.cat(before), torch.cat(after)


class States:
    """The leading directions of the states seen so far, and the sums of pairs in them.

    Args:
        size: Numbers in a state.
        carried: Directions to carry along, at most.
        device: Where the states are.
    """

    NEGLIGIBLE = 1e-6
    """Directions with less than this part of the strongest singular value are rounding errors."""

    def __init__(self, size: int, carried: int, device: torch.device) -> None:
        self.carried = carried
        self.basis = torch.zeros(size, 0, dtype=torch.float64, device=device)
        self.values = self.basis.new_zeros(0)
        """Singular values of the states, largest first."""
        self.gram = self.cross = self.basis.new_zeros(0, 0)
        self.variance = self.basis.new_zeros(())

    def add(self, before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> None:
        """Take in some states and those that follow them."""
        together = torch.cat((self.basis * self.values, before.mT), dim=1)
        orthonormal, triangle = torch.linalg.qr(together)
        left, values, _ = torch.linalg.svd(triangle, full_matrices=False)
        kept = min(self.carried, int((values > self.NEGLIGIBLE * values[0]).sum()))
        basis = orthonormal @ left[:, :kept]
        turn = basis.mT @ self.basis
        a, b = before @ basis, after @ basis
        self.gram = turn @ self.gram @ turn.mT + a.mT @ a
        self.cross = turn @ self.cross @ turn.mT + b.mT @ a
        self.basis, self.values = basis, values[:kept]
        self.variance = self.variance + before.square().sum()

    def reduce(
        self, rank: int, energy: float | None
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r r"]]:
        """The leading modes and the least-squares operator between coordinates in them."""
        kept = min(rank, len(self.values))
        if energy is not None:
            held = self.values.square().cumsum(0) / self.variance
            kept = min(kept, 1 + int((held < energy - 1e-12).sum()))
        scale = self.values[:kept]
        # Coordinates of unit variance: the normal equations are then well conditioned.
        gram = self.gram[:kept, :kept] / (scale[:, None] * scale)
        cross = self.cross[:kept, :kept] / scale
        operator = torch.linalg.solve(gram, cross.mT).mT / scale
        return self.basis[:, :kept].mT, operator
