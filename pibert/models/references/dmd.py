"""Dynamic mode decomposition: a linear operator between training states.

    x'_{t+s} = Phi A^s Phi^T x'_t,     A = argmin sum_t | Phi^T x'_{t+1} - A Phi^T x'_t |^2

x' is the fluctuation about the training mean, zero at unknown points, in standardised units. Phi
are the leading POD modes of the training inputs, orthonormal. With a history of several frames the
state is all of them (delay coordinates), and the newest frame of the next state is the output.
Growing modes are not damped. References: Schmid (2010); as a regression on pairs of states: Tu et
al. (2014).

The component of a state outside the modes is dropped, which removes noise, or it persists: new
flows of a smooth field may be mostly outside the modes of few training flows.

With few modes the state is not resolved, with many the regression overfits. Rank, ridge (added to
the variance of each mode, relative to that of the strongest; it shrinks A towards zero, or towards
the identity if the rest persists) and what happens to the rest are those with the lowest squared
error of the next frame on validation data, among ``RANKS`` and ``RIDGES``. After ``fit`` the
configuration states them.

After a pass for the mean, the training states are read once. An incremental singular value
decomposition tracks twice as many directions as are kept, and the sums of the regression are
rotated with them: exact if the data have no more directions than that, approximate otherwise.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.models.references.simple import AboutTheMean, ReferenceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DMDConfig(ReferenceConfig):
    """Options of ``DMD``."""

    rank: int | None = None
    """Number of POD modes; fewer where the data have fewer directions. None: chosen on validation
    data; without them 64, and at most half the number of samples."""
    ridge: float | None = None
    """None: chosen on validation data, 0 without them."""
    most_modes: int = 512
    """Largest rank among those that validation data choose from."""
    rest_persists: bool | None = None
    """Whether the component of a state outside the modes persists. None: chosen on validation data,
    False without them."""

    def __post_init__(self) -> None:
        ReferenceConfig.__post_init__(self)
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1, found {self.rank}")
        if self.ridge is not None and not 0 <= self.ridge < math.inf:
            raise ValueError(f"ridge must be at least 0 and finite, found {self.ridge}")


RANKS = (8, 16, 32, 64, 128, 200, 256, 384, 512)
RIDGES = (0.0, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)
WITHOUT_VALIDATION = 64
"""The largest rank where there are no validation data."""
LEAST_CORRECTION = 1e-6
"""Smallest scale of a correction, in standardised units."""
PRESETS: dict[str, DMDConfig] = {"base": DMDConfig()}


class Setting(NamedTuple):
    """What validation data choose."""

    rank: int
    ridge: float
    rest_persists: bool


class DMD(AboutTheMean):
    """Steps the POD coordinates of a state by a matrix."""

    modes: Float[Tensor, "r hc y x"]
    """Orthonormal, the strongest first; zero beyond the number of kept modes."""
    operator: Float[Tensor, "r r"]

    def __init__(self, config: DMDConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self._allocate(WITHOUT_VALIDATION if config.rank is None else config.rank)

    def _allocate(self, rank: int) -> None:
        state = (self.in_channels, *self.spec.grid.shape)
        rank = min(rank, math.prod(state))
        self.register_buffer("modes", self.mean.new_zeros(rank, *state))
        self.register_buffer("operator", self.mean.new_zeros(rank, rank))

    def fit(
        self, batches: Iterable[Batch], normalizer: Normalizer, valid: Iterable[Batch] | None = None
    ) -> None:
        if iter(batches) is batches:
            raise ValueError(
                "DMD expected batches that can be read twice, such as a list or a loader, found "
                "an iterator"
            )
        self._fit_mean(batches)
        size, options = self.modes[0].numel(), self.config
        usual = min(options.most_modes, WITHOUT_VALIDATION if valid is None else RANKS[-1])
        most = min(size, usual if options.rank is None else options.rank)
        states = States(size, 2 * most, self.modes.device)
        count = 0
        for before, after in _gathered(self._pairs(batches), 2 * most):
            states.add(before, after)
            count += len(before)
        if valid is None and options.rank is None:
            most = min(most, max(1, count // 2))  # more would fit the few samples exactly
        chosen = Setting(most, options.ridge or 0.0, bool(options.rest_persists))
        if valid is not None and None in (options.rank, options.ridge, options.rest_persists):
            chosen = self._chosen(states, min(most, len(states.values)), valid)
        self.config = replace(options, **chosen._asdict())
        self._allocate(chosen.rank)
        modes, operator = states.reduce(*chosen)
        self.modes[: len(modes)] = modes.view(-1, *self.modes.shape[1:]).to(self.modes)
        self.operator[: len(modes), : len(modes)] = operator.to(self.operator)
        self._mark_fitted()

    def _chosen(self, states: "States", most: int, valid: Iterable[Batch]) -> "Setting":
        """Return the setting with the lowest squared error of the next frame."""
        newest = states.basis[-self.mean.numel() :, :most]
        inner = newest.mT @ newest
        gram = torch.zeros_like(inner)
        # Of what the modes predict: the next frame, or if the rest persists its difference to the
        # newest one.
        cross = {persists: torch.zeros_like(inner) for persists in (False, True)}
        square = dict.fromkeys(cross, 0.0)
        for before, after in self._pairs(valid):
            coordinates = before @ states.basis[:, :most]
            gram += coordinates.mT @ coordinates
            last, following = (state[:, -self.mean.numel() :] for state in (before, after))
            for persists, target in ((False, following), (True, following - last)):
                cross[persists] += (target @ newest).mT @ coordinates
                square[persists] += float(target.square().sum())

        def error(setting: Setting) -> float:
            """Return the sum of | y - Phi A a |^2 over all samples."""
            _, a = states.reduce(*setting)
            k, persists = len(a), setting.rest_persists
            a = a - torch.eye(k).to(a) if persists else a
            squares = (a.mT @ inner[:k, :k] @ a) * gram[:k, :k]
            return square[persists] + float(squares.sum() - 2 * (a * cross[persists][:k, :k]).sum())

        options = self.config
        ranks = [r for r in RANKS if r < most] + [most] if options.rank is None else [most]
        ridges = RIDGES if options.ridge is None else [options.ridge]
        rests = (False, True) if options.rest_persists is None else [options.rest_persists]
        return min(itertools.starmap(Setting, itertools.product(ranks, ridges, rests)), key=error)

    def _pairs(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield states and the states one frame later, (b, d) in float64."""
        for batch in self._checked(batches):
            before = self._fluctuation(batch.x, batch.mask[:, None])
            newest = self._fluctuation(batch.y[:, 0], batch.target_mask[:, :1])
            after = torch.cat((before[:, len(self.mean) :], newest), dim=1)
            yield before.flatten(1).double(), after.flatten(1).double()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        modes, frame = self.modes.flatten(1), self.mean.numel()
        state = self._fluctuation(x, known).flatten(1)
        coordinates = state @ modes.mT
        rest: Tensor | float = 0.0
        if self.config.rest_persists:
            rest = state[:, -frame:] - coordinates @ modes[:, -frame:]
        frames = []
        for _ in range(self.config.horizon):
            coordinates = coordinates @ self.operator.mT
            fluctuation = coordinates @ modes[:, -frame:] + rest
            frames.append(self.mean + fluctuation.unflatten(1, self.mean.shape))
        return torch.cat(frames, dim=1)


class DMDSkip(nn.Module):
    """A skip connection for models of any kind: they correct the frame that DMD predicts.

    What the modes do not hold persists, so that without a fit the model corrects the last frame.
    ``scale`` is the size of a correction: the error of DMD on the training data.
    """

    scale: Float[Tensor, " k"]

    def __init__(self, modes: int, history: int, horizon: int, spec: FieldSpec) -> None:
        super().__init__()
        if modes > RANKS[-1]:
            raise ValueError(f"dmd_modes must be at most {RANKS[-1]}, found {modes}")
        self._usual = DMDConfig(
            history=history, horizon=horizon, most_modes=modes, rest_persists=True
        )
        self.dmd = DMD(replace(self._usual, rank=modes, ridge=0.0), spec)
        self.register_buffer("scale", torch.ones(horizon * len(spec.channels)))

    @torch.no_grad()
    def fit(
        self, batches: Iterable[Batch], normalizer: Normalizer, valid: Iterable[Batch] | None = None
    ) -> None:
        """Fit DMD, as ``DMD.fit`` does, and measure its error."""
        fitted = DMD(self._usual, self.dmd.spec).to(self.scale)
        fitted.fit(batches, normalizer, valid)
        rank = len(fitted.modes)
        for buffer in (self.dmd.modes, self.dmd.operator):
            buffer.zero_()
        self.dmd.modes[:rank], self.dmd.operator[:rank, :rank] = fitted.modes, fitted.operator
        self.dmd.mean.copy_(fitted.mean)
        self.dmd._mark_fitted()
        square, count = torch.zeros_like(self.dmd.mean[:, 0, 0]), 0
        for batch in fitted._checked(batches):
            known = (batch.mask & batch.target_mask[:, 0])[:, None]
            error = fitted(batch.x, None, batch.mask)[:, : len(square)] - batch.y[:, 0]
            square += torch.where(known, error, 0.0).square().sum((0, 2, 3))
            count += int(known.sum())
        scale = (square / max(count, 1)).sqrt().clamp(min=LEAST_CORRECTION)
        self.scale.copy_(scale.repeat(self.dmd.config.horizon))

    def forward(self, change: Tensor, x: Tensor, known: Tensor | None) -> Tensor:
        """Return the frames of DMD with a change in units of ``scale``."""
        self.dmd.check_size((x.shape[-2], x.shape[-1]))
        with torch.autocast(x.device.type, enabled=False):
            return self.dmd.ahead(x, known) + self.scale[:, None, None] * change


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

    def reduce(
        self, rank: int, ridge: float = 0.0, rest_persists: bool = False
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r r"]]:
        """Return the leading modes and the least-squares operator on their coordinates."""
        kept = min(rank, len(self.values))
        scale = self.values[:kept]
        # Coordinates of unit variance: the normal equations are then well conditioned.
        gram = self.gram[:kept, :kept] / (scale[:, None] * scale)
        penalty = torch.diag(ridge * (scale[0] / scale).square())
        gram = gram + penalty
        cross = self.cross[:kept, :kept] / scale
        if rest_persists:
            cross = cross + penalty * scale
        operator = torch.linalg.solve(gram, cross.mT).mT / scale
        return self.basis[:, :kept].mT, operator
