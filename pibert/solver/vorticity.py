"""Vorticity in a periodic box: two benchmarks that others defined.

Both solve w_t + u w_x + v w_y = nu lap w - mu w + f for one viscosity, pseudo-spectrally, and state
the published split of their trajectories.

``kolmogorov`` is the two-dimensional Kolmogorov flow of APEBench (Koehler, Niedermayr, Thuerey,
2024; scenario ``2d_phy_kolm_flow``), with f = 4 cos(4 y). Its package exponax 0.1.0 applies the
drag twice, so mu is 0.2. It cuts the factors of the product u w_x + v w_y to |k| <= N / 3 - 1 but
keeps all waves of the product and of the state; so do we. APEBench's state is -w.

``navier-stokes`` is the flow at viscosity 1e-5 of the FNO paper (Li et al., 2021), on a grid four
times finer than the stored one. The first vorticity is a Gaussian random field as the published
generator draws it, with the variance 2 * 7^3 (4 pi^2 |k|^2 + 49)^(-2.5) of each wave; the paper
states another prefactor.

Differences from the originals: the Runge-Kutta method of order 4 replaces their schemes, and the
random numbers are ours, so samples have the same distribution but are not the same.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pibert.config import Count, NonNegativeInt, Positive
from pibert.fields import Grid, Trajectory
from pibert.physics import spectral
from pibert.solver.periodic import PeriodicRecipe, Sample, States, Values
from pibert.solver.recipes import Diverged, Recipe, generator_of

Spectrum = Complex[Tensor, "b ky kx"]
COARSE = (24, 32, 40, 48, 64, 80, 96, 128, 160, 192)
"""Points along the longer side of coarser grids."""


@dataclass(frozen=True, kw_only=True)
class VorticityRecipe(PeriodicRecipe):
    """One channel, the vorticity. Trajectories state their split."""

    viscosity: Positive
    train: NonNegativeInt
    """Number of training trajectories, the first ones."""
    valid: NonNegativeInt
    """Number of validation trajectories, the next ones; the others are for testing."""
    train_frames: Count | None = None
    """Frames of a training or validation trajectory; None: as many as of the others."""
    refinement: Count = 1
    """Points of the simulation per stored point, along each axis."""

    channels = ("omega",)
    scalings = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train + self.valid > self.samples:
            raise ValueError(
                f"expected at most {self.samples} training and validation trajectories, the number "
                f"of samples, found {self.train} and {self.valid}"
            )
        if self.train_frames is not None and not 2 <= self.train_frames <= self.frames:
            raise ValueError(
                f"train_frames must be from 2 to {self.frames} (frames), found {self.train_frames}"
            )

    @property
    def family(self) -> None:
        """No family has vorticity as its only field."""
        return None

    @property
    def simulated_grid(self) -> Grid:
        rows, columns = (self.refinement * points for points in self.shape)
        return Grid.periodic((rows, columns), dx=self.size[1] / columns, dy=self.size[0] / rows)

    @property
    def resolution(self) -> str:
        return " x ".join(map(str, self.simulated_grid.shape)) + " points"

    def coarser(self) -> tuple[Self, ...]:
        """The same equation on coarser grids, the coarsest first."""
        rows, columns = self.simulated_grid.shape
        shares = (size / max(rows, columns) for size in COARSE if size < max(rows, columns))
        shapes = ((2 * round(rows * s / 2), 2 * round(columns * s / 2)) for s in shares)
        return tuple(replace(self, shape=s, refinement=1) for s in shapes if min(s) >= 8)

    @abstractmethod
    def initial_vorticity(self, generator: torch.Generator) -> Float[Tensor, "y x"]: ...

    @abstractmethod
    def advance_spectrum(self, vorticity: Spectrum, modes: spectral.Modes, steps: int) -> Spectrum:
        """Return the vorticity one interval later."""

    def draw(self, index: int) -> Sample:
        in_train, in_valid = index < self.train, index < self.train + self.valid
        split = "train" if in_train else "valid" if in_valid else "test"
        start = self.initial_vorticity(generator_of(self.seed, index, self.case))
        return Sample({}, start[None], {"split": split, "viscosity": self.viscosity})

    def advance(self, fields: States, parameters: Values) -> States:
        grid = self.simulated_grid
        modes = spectral.modes_of(grid, fields.device)
        vorticity = torch.fft.rfft2(fields[:, 0])
        steps = spectral.steps_needed(spectral.velocity_of(vorticity, modes), grid, self.interval)
        later = spectral.in_groups(
            vorticity,
            steps,
            lambda members, count: self.advance_spectrum(vorticity[members], modes, count),
        )
        return modes.field(later)[:, None]

    def _finish(
        self, index: int, sample: Sample, states: Float[Tensor, "t c y x"]
    ) -> Trajectory | Diverged:
        stored = states[..., :: self.refinement, :: self.refinement]
        finished = super()._finish(index, sample, stored)
        count = self.train_frames
        if isinstance(finished, Diverged) or count is None or sample.local["split"] == "test":
            return finished
        return replace(finished, states=stored[:count].clone(), time=finished.time[:count])


@dataclass(frozen=True, kw_only=True)
class Kolmogorov(VorticityRecipe):
    """APEBench's Kolmogorov flow."""

    size: tuple[float, float] = (2 * math.pi, 2 * math.pi)
    waves: int = 4
    force: float = 1.0
    """Amplitude of the force on the velocity."""
    drag: float = 0.2

    case = "kolmogorov"
    title = "Two-dimensional Kolmogorov flow, as in APEBench"
    method = "pseudo-spectral; integrating factor and Runge-Kutta of order 4"

    def initial_vorticity(self, generator: torch.Generator) -> Float[Tensor, "y x"]:
        return spectral.random_field(self.simulated_grid, generator, lambda k: 1.0 * (k <= 5))

    def advance_spectrum(self, vorticity: Spectrum, modes: spectral.Modes, steps: int) -> Spectrum:
        rows, columns = modes.shape
        turn_y, turn_x = (2 * math.pi / length for length in self.size)
        smooth = (modes.kx.abs() <= turn_x * (columns // 2 * 2 / 3 - 1)) & (
            modes.ky.abs() <= turn_y * (rows // 2 * 2 / 3 - 1)
        )
        _, y = self.simulated_grid.coordinates(torch.float64, modes.kx.device)
        wavenumber = turn_y * self.waves
        force = torch.fft.rfft2(self.force * wavenumber * torch.cos(wavenumber * y))

        def rate(state: Tensor) -> Tensor:
            w = smooth * state
            u, v = spectral.velocity_of(w, modes).unbind(-3)
            advection = u * modes.field(1j * modes.kx * w) + v * modes.field(1j * modes.ky * w)
            return force - torch.fft.rfft2(advection)

        step = self.interval / steps
        half = torch.exp(-step / 2 * (self.viscosity * modes.squared + self.drag))
        for _ in range(steps):
            vorticity = spectral.runge_kutta_step(vorticity, rate, half, step)
        return vorticity


@dataclass(frozen=True, kw_only=True)
class NavierStokes(VorticityRecipe):
    """The FNO paper's flow: forced, without drag, from a Gaussian random field."""

    force: float = 0.1

    case = "navier-stokes"
    title = "Forced vorticity at low viscosity, as in the FNO paper"
    method = "pseudo-spectral, 2/3 dealiased; integrating factor and Runge-Kutta of order 4"

    def initial_vorticity(self, generator: torch.Generator) -> Float[Tensor, "y x"]:
        grid = self.simulated_grid
        modes = spectral.modes_of(grid)
        noise = torch.fft.rfft2(torch.randn(grid.shape, dtype=torch.float64, generator=generator))
        amplitude = (2 * 7.0**3) ** 0.5 * (modes.squared + 49.0) ** -1.25
        amplitude[0, 0] = 0.0
        # The waves of white noise on n points have the variance n; those of the field, n^2.
        return modes.field(amplitude * noise) * math.sqrt(grid.shape[0] * grid.shape[1])

    def advance_spectrum(self, vorticity: Spectrum, modes: spectral.Modes, steps: int) -> Spectrum:
        x, y = self.simulated_grid.coordinates(torch.float64, modes.kx.device)
        phase = 2 * math.pi * (x + y)
        force = torch.fft.rfft2(self.force * (torch.sin(phase) + torch.cos(phase)))
        return spectral.advance_vorticity(
            modes.keep * vorticity,
            modes,
            self.interval,
            steps,
            viscosity=torch.full_like(vorticity[:, 0, 0].real, self.viscosity),
            force=force,
        )


KOLMOGOROV_PRESETS: dict[str, Recipe] = {
    "demo": Kolmogorov(samples=8, interval=0.1, warm_up=100, viscosity=0.01, train=5, valid=1),
    # APEBench trains on 50 trajectories of 50 steps; 5 of them select the epoch here.
    "apebench": Kolmogorov(
        samples=80,
        group=10,
        shape=(160, 160),
        frames=101,
        interval=0.1,
        warm_up=500,
        viscosity=0.01,
        train=45,
        valid=5,
        train_frames=51,
    ),
}
NAVIER_STOKES_PRESETS: dict[str, Recipe] = {
    "demo": NavierStokes(
        samples=8,
        shape=(32, 32),
        frames=20,
        interval=1.0,
        warm_up=1,
        viscosity=1e-4,
        train=5,
        valid=1,
        refinement=2,
    ),
    # 50 of the 1,000 training trajectories select the epoch here.
    "fno": NavierStokes(
        samples=1200,
        group=100,
        frames=20,
        interval=1.0,
        warm_up=1,
        viscosity=1e-5,
        train=950,
        valid=50,
        refinement=4,
    ),
}
