"""Dynamic mode decomposition: a linear operator between training states.

    x'_{t+s} = Phi A^s Phi^T x'_t,     A = argmin sum_t | Phi^T x'_{t+1} - A Phi^T x'_t |^2

x' is the fluctuation about the training mean, zero at unknown points, in standardised units. Phi
are the leading POD modes of the training inputs, orthonormal; the component of a state outside them
is lost. With a history of several frames the state is all of them (delay coordinates), and the
newest frame of the next state is the output. Growing modes are not damped. References: Schmid
(2010); as a regression on pairs of states: Tu et al. (2014).

After a pass for the mean, the training states are read once. An incremental singular value
decomposition tracks twice as many directions as are kept, and the sums of the regression are
rotated with them: exact if the data have no more directions than that, approximate otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.models.references.simple import AboutTheMean, ReferenceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DMDConfig(ReferenceConfig):
    """Options of ``DMD``."""

    rank: int = 64
    """Largest number of POD modes; fewer where the data have fewer directions."""


PRESETS: dict[str, DMDConfig] = {"base": DMDConfig()}


class DMD(AboutTheMean):
    """Steps the POD coordinates of a state by a matrix."""

    modes: Float[Tensor, "r hc y x"]
    """Orthonormal, the strongest first; zero beyond the number of kept modes."""
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
        modes, operator = states.reduce(rank)
        self.modes.zero_()[: len(modes)] = modes.view(-1, *self.modes.shape[1:]).to(self.modes)
        self.operator.zero_()[: len(modes), : len(modes)] = operator.to(self.operator)
        self._mark_fitted()

    def _pairs(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield states and the states one frame later, (b, d) in float64."""
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
    """Yield the pairs in larger batches, as each batch costs a decomposition."""
    befores: list[Tensor] = []
    afters: list[Tensor] = []
    for before, after in pairs:
        befores.append(before)
        afters.append(after)
        if sum(map(len, befores)) >= least:
            yield torch.cat(befores), torch.cat(afters)
            befores, afters = [], []
    if befores:
        yield torch.cat(befores), torch.cat(afters)


class States:
    """The leading directions of the states so far, and the sums over pairs in them.

    Args:
        size: Length of a state.
        tracked: Largest number of directions.
        device: Device of the states.
    """

    NEGLIGIBLE = 1e-6
    """Directions with smaller singular values, relative to the largest, are rounding errors."""

    def __init__(self, size: int, tracked: int, device: torch.device) -> None:
        self.tracked = tracked
        self.basis = torch.zeros(size, 0, dtype=torch.float64, device=device)
        self.values = self.basis.new_zeros(0)
        """Singular values of the states, largest first."""
        self.gram = self.cross = self.basis.new_zeros(0, 0)

    def add(self, before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> None:
        """Add states and their successors."""
        together = torch.cat((self.basis * self.values, before.mT), dim=1)
        orthonormal, triangle = torch.linalg.qr(together)
        left, values, _ = torch.linalg.svd(triangle, full_matrices=False)
        kept = min(self.tracked, int((values > self.NEGLIGIBLE * values[0]).sum()))
        basis = orthonormal @ left[:, :kept]
        rotation = basis.mT @ self.basis
        a, b = before @ basis, after @ basis
        self.gram = rotation @ self.gram @ rotation.mT + a.mT @ a
        self.cross = rotation @ self.cross @ rotation.mT + b.mT @ a
        self.basis, self.values = basis, values[:kept]

    def reduce(self, rank: int) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r r"]]:
        """Return the leading modes and the least-squares operator on their coordinates."""
        kept = min(rank, len(self.values))
        scale = self.values[:kept]
        # Coordinates of unit variance: the normal equations are then well conditioned.
        gram = self.gram[:kept, :kept] / (scale[:, None] * scale)
        cross = self.cross[:kept, :kept] / scale
        operator = torch.linalg.solve(gram, cross.mT).mT / scale
        return self.basis[:, :kept].mT, operator
