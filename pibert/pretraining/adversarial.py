"""The smallest smooth change of a window that violates its equation and looks valid to a model.

A change is a rotation of Fourier modes (``phases``) by angles that are damped like
exp(-(k / k_c)^2).

1. From random angles, take a few steps of equal length up the gradients of the model's validity
   logit and of the logarithm of the residual, each of unit length.
2. Along these angles, find the smallest amplitude at which the excess is above kappa, or use the
   largest one. A coarse and a fine set of amplitudes are each tried in one batch.

The excess is the mean over the terms of the equation of their mean squared residuals, each divided
by that of the valid window, so terms of different units count alike.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pibert.fields import Boundary, FieldSpec, Normalizer, Sides, known_coefficients
from pibert.fields.equations import channel_indices
from pibert.physics import find_family, masked_residuals
from pibert.physics.stepping import framed
from pibert.pretraining import phases

Windows = Float[Tensor, "b hc y x"]
TRIALS = 8
"""Amplitudes tried in one batch."""
FLOOR = 1e-6
"""Least residual of a window, as a share of that at the first trial, which is not zero."""


class WindowResidual:
    """Mean squares of the residual terms of standardised windows.

    Only inner points count, those whose stencils neither touch an unknown point nor leave the grid:
    one-sided stencils take most of the time and are the least accurate.
    """

    def __init__(self, spec: FieldSpec, normalizer: Normalizer) -> None:
        assert spec.family is not None
        self.spec, self.normalizer = spec, normalizer
        self.family = find_family(spec.family)
        # A body is unknown in the mask of every window.
        self.grid = replace(spec.grid, sides=Sides(*[Boundary.PERIODIC] * 4), body=None)

    @torch.no_grad()
    def counted(self, x: Windows, known: Bool[Tensor, "b y x"]) -> dict[str, Bool[Tensor, "b y x"]]:
        """The points at which each term counts; the values of the windows do not matter."""
        inner = known & framed(self.spec.grid, 1, known)
        _, defined = masked_residuals(
            self.family, self._fields(x), self.grid, inner[:, None], dt=self.spec.dt
        )
        return defined

    def mean_squares(
        self,
        x: Windows,
        parameters: Float[Tensor, "b q"] | None,
        counted: Mapping[str, Bool[Tensor, "b y x"]],
    ) -> Float[Tensor, "b term"]:
        """One number per window and term, in physical units, over the points of ``counted``."""
        coefficients = known_coefficients(self.family, self.spec, parameters)
        residuals = self.family.residuals(
            self._fields(x), self.grid, dt=self.spec.dt, **coefficients
        )
        means = []
        for term in self.family.terms:
            here = counted[term]
            squares = torch.where(here[:, None], residuals[term], 0.0).square().sum((-3, -2, -1))
            means.append(squares / here.sum((-2, -1)).clamp(min=1))
        return torch.stack(means, dim=1)

    def _fields(self, x: Tensor) -> dict[str, Tensor]:
        """The frames that the residual needs, in physical units."""
        frames = x.unflatten(1, (-1, len(self.spec.channels)))[:, -self.family.frames :]
        return {
            name: frames[:, :, i] * self.normalizer.std[i] + self.normalizer.mean[i]
            for name, i in channel_indices(self.family, self.spec.channels).items()
        }


def attack(
    x: Windows,
    known: Bool[Tensor, "b y x"],
    seeds: Int[Tensor, " b"],
    logit: Callable[[Windows], Float[Tensor, " b"]],
    residual: Callable[[Windows], Float[Tensor, "n term"]],
    *,
    kappa: float,
    steps: int,
    amplitude: tuple[float, float],
    cutoff: float,
) -> Windows:
    """Return changed windows.

    Args:
        x: Valid windows, zero where not known.
        known: Where they are known.
        seeds: Seeds of the initial angles.
        logit: Returns the model's logit of windows like x.
        residual: Returns mean squares per term, also for several copies of the batch.
        kappa: Excess to reach.
        steps: Steps up the gradients.
        amplitude: Smallest and largest relative change of a window.
        cutoff: k_c as a share of the highest wave number of the grid.
    """
    low, high = amplitude
    middle, tiny = (low * high) ** 0.5, torch.finfo(x.dtype).tiny
    weight = phases.smooth_weight((x.shape[-2], x.shape[-1]), cutoff, x)
    energy, spectrum = _energy_shares(x), torch.fft.rfft2(x)

    def unit(angles: Tensor) -> Tensor:
        """Angles of a real field that change the window by 1 (for small angles)."""
        angles = phases.antisymmetric(angles, x.shape[-1])
        size = (energy * angles.square()).sum((1, 2, 3), keepdim=True).sqrt()
        return torch.where(size > 0, angles / size, 0.0)

    angles = unit(phases.random_angles(seeds, "adversarial", x) * weight) * middle
    valid = residual(x)
    scale = valid + FLOOR * residual(phases.turned(x, angles, known, rounds=0))
    scale = scale.clamp(min=tiny)
    for _ in range(steps):
        with torch.enable_grad():
            angles = angles.detach().requires_grad_()
            turn = torch.polar(torch.ones_like(angles), angles)
            trial = torch.fft.irfft2(spectrum * turn, s=x.shape[-2:])
            trial = torch.where(known[:, None], trial, 0.0)
            (up,) = torch.autograd.grad(logit(trial).sum(), angles, retain_graph=True)
            # A window at rest has no residual, whatever the angles.
            away = (residual(trial) / scale).mean(-1).clamp(min=tiny).log().sum()
            (out,) = torch.autograd.grad(away, angles)
        # Steps of twice the length of the angles, so that the start matters little.
        angles = angles.detach()
        ascent = _normalised(up * weight) + _normalised(out * weight)
        angles = unit(angles + _length(angles) * ascent) * middle

    angles = unit(angles)
    wanted = kappa * (valid / scale).mean(-1)
    share = torch.arange(1, TRIALS + 1, dtype=x.dtype, device=x.device)[:, None] / TRIALS
    lower, upper = torch.full_like(wanted, low), torch.full_like(wanted, high)
    copies, repeated = x.repeat(TRIALS, 1, 1, 1), known.repeat(TRIALS, 1, 1)
    chosen = x
    for _ in range(2):
        sizes = lower * (upper / lower) ** share  # (trial, b), growing
        turns = (sizes[..., None, None, None] * angles).flatten(0, 1)
        trials = phases.turned(copies, turns, repeated)
        beyond = (residual(trials).view(-1, *scale.shape) / scale).mean(-1) > wanted
        # argmax finds the first one beyond; if there is none, the last trial is used.
        first = torch.where(beyond.any(0), beyond.int().argmax(0), TRIALS - 1)
        upper = sizes.gather(0, first[None])[0]
        before = sizes.gather(0, (first - 1).clamp(min=0)[None])[0]
        lower = torch.where(first > 0, before, lower)
        chosen = trials.view(TRIALS, *x.shape)[first, torch.arange(len(x), device=x.device)]
    return chosen


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation in this context, then restore the flag of every module."""
    former = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in former:
            module.training = training


def _energy_shares(x: Windows) -> Tensor:
    """Share of every mode of every field in the variance of the window."""
    variance = x.var((-2, -1), correction=0, keepdim=True)
    total = variance.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return phases.mode_energy(x) * (variance / total)


def _length(angles: Tensor) -> Tensor:
    return angles.square().sum((1, 2, 3), keepdim=True).sqrt()


def _normalised(gradient: Tensor) -> Tensor:
    length = _length(gradient)
    return torch.where(length > 0, gradient / length, 0.0)
