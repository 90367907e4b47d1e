"""The physics bias: how badly each token's patch breaks the governing equations.

The input is brought back to physical units, the residuals of the PDE family are evaluated on the
grid, each is divided by its own scale over the training set, and the sum of their magnitudes is
averaged over every patch. The result r_j >= 0 is what attention subtracts (times lambda) from the
logits of key j. Stencils that touch an unknown pixel or the body do not count.

Normaliser, spacing, scales and weights are buffers: a saved or exported model carries them.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.physics import find_family, magnitude, masked_residuals
from pibert.physics.coefficients import known_coefficients
from pibert.remarks import warn


class PhysicsBias(nn.Module):
    """Pooled residual of a PDE family, one number per patch."""

    def __init__(
        self,
        spec: FieldSpec,
        patch: int,
        *,
        history: int = 1,
        family: str | None = None,
        weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        name = family or spec.family
        if name is None:
            raise ValueError("the field spec names no PDE family, so it has no residual")
        self.family = find_family(name)
        missing = [channel for channel in self.family.channels if channel not in spec.channels]
        if missing:
            raise ValueError(
                f"the residual of {name!r} needs channels {list(self.family.channels)}, "
                f"found {list(spec.channels)}; give the field spec another family or None, or set "
                f"attention_bias=0"
            )
        terms = self.family.terms
        usable = weights is None or all(0 <= weight < math.inf for weight in weights)
        if not usable or len(weights or terms) != len(terms):
            raise ValueError(
                f"expected a weight, zero or positive, for each of {list(terms)}, found {weights}"
            )
        self.spec, self.patch = spec, patch
        self.frames = min(history, self.family.frames)
        self.register_buffer("mean", torch.zeros(len(spec.channels)))
        self.register_buffer("std", torch.ones(len(spec.channels)))
        self.register_buffer("scales", torch.ones(len(terms)))
        self.register_buffer("weights", torch.tensor(weights or (1.0,) * len(terms)))
        self.register_buffer("spacing", torch.tensor([spec.grid.dy, spec.grid.dx]))
        self.mean: Tensor
        self.std: Tensor
        self.scales: Tensor
        self.weights: Tensor
        self.spacing: Tensor
        self.register_load_state_dict_post_hook(_keep_spacing)
        self._guess_scales()

    def set_normalizer(self, normalizer: Normalizer) -> None:
        """Tell what one standardised unit of each channel is in physical units."""
        if len(normalizer.mean) != len(self.mean):
            raise ValueError(
                f"expected a normalizer of {len(self.mean)} channels, found {len(normalizer.mean)}"
            )
        self.mean.copy_(torch.tensor(normalizer.mean))
        self.std.copy_(torch.tensor(normalizer.std))
        self._guess_scales()

    def _guess_scales(self) -> None:
        """Scales in the right units until ``calibrate`` measures them: those of white noise."""
        if self.mean.is_meta:  # only the shapes of the model are asked for
            return
        channels = self.frames * len(self.spec.channels)
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(4, channels, *self.spec.grid.shape, generator=generator)
        self.calibrate(noise.to(self.mean))

    @torch.no_grad()
    def calibrate(
        self,
        x: Float[Tensor, "n c y x"],
        parameters: Float[Tensor, "n q"] | None = None,
        mask: Tensor | None = None,
        chunk: int = 256,
    ) -> None:
        """Set each residual's scale to its root mean square over standardised training samples."""
        if mask is not None:
            mask = _per_pixel(mask, (len(x), *x.shape[-2:]))
        energy = torch.zeros_like(self.scales, dtype=torch.float64)
        count = torch.zeros_like(energy)
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            residuals, defined = self._residuals(
                x[part],
                None if parameters is None else parameters[part],
                None if mask is None else mask[part],
            )
            for index, term in enumerate(self.family.terms):
                energy[index] += (residuals[term].square() * defined[term]).double().sum()
                count[index] += defined[term].expand(residuals[term].shape).sum()
        rms = (energy / count.clamp(min=1)).sqrt()
        if not bool(torch.isfinite(rms).all()):
            raise ValueError(
                f"expected finite training samples, found residuals {rms.tolist()}; "
                f"pass a mask that is 0 at missing pixels"
            )
        # A residual that vanishes on the training set has no scale of its own: keep the guess.
        self.scales.copy_(torch.where(rms > 0, rms, self.scales))

    def forward(
        self,
        x: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"] | None = None,
        mask: Tensor | None = None,
        patch: int | None = None,
    ) -> Float[Tensor, "b n"]:
        """r_j of every patch, in token order; x is standardised, history folded into channels.

        ``patch`` replaces the patch size of the model where that depends on the grid.
        """
        patch = patch or self.patch
        residuals, defined = self._residuals(x, parameters, mask)
        stacked = torch.stack([residuals[term] for term in self.family.terms], dim=1)
        counted = torch.stack([defined[term] for term in self.family.terms], dim=1)
        share = (self.weights / self.scales).to(stacked.dtype)
        ny, nx = x.shape[-2:]
        margin = (0, -nx % patch, 0, -ny % patch)
        # Residuals are zero where they do not count, and so is what is added beyond the grid.
        both = torch.cat((stacked, counted.to(stacked.dtype)), dim=1)
        if any(margin):
            both = F.pad(both, margin)
        total, fraction = F.avg_pool2d(both, patch).chunk(2, dim=1)
        pooled = total / fraction.clamp(min=0.5 / patch**2)  # (b, terms, y, x)
        # Not an einsum: autocast would round it to half precision.
        return (pooled * share[:, None, None]).sum(1).flatten(1)

    def _residuals(
        self, x: Tensor, parameters: Tensor | None, mask: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Magnitude of every residual term on the grid, and where its stencil counts."""
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        b, channels, ny, nx = x.shape
        names = self.spec.channels
        frames = x.view(b, channels // len(names), len(names), ny, nx)[:, -self.frames :]
        mean, std = (s.to(x.dtype)[:, None, None] for s in (self.mean, self.std))
        frames = torch.addcmul(mean, frames, std)
        wanted = (*self.family.channels, *self.family.optional_channels)
        fields = {name: frames[:, :, names.index(name)] for name in wanted if name in names}
        residuals, defined = masked_residuals(
            self.family,
            fields,
            at_resolution(self.spec.grid, (ny, nx)),
            None if mask is None else _per_pixel(mask, (b, ny, nx)),
            dt=self.spec.dt,
            **known_coefficients(self.family, self.spec, parameters),
        )
        return {term: magnitude(value) for term, value in residuals.items()}, defined


def at_resolution(grid: Grid, shape: tuple[int, int]) -> Grid:
    """The same domain with another number of points; what overlaps the body is body."""
    if grid.shape == shape:
        return grid
    (ny, nx), body = shape, grid.body
    if body is not None:
        body = F.adaptive_max_pool2d(body[None].float(), shape)[0] > 0
    dy, dx = grid.dy * grid.shape[0] / ny, grid.dx * grid.shape[1] / nx
    return replace(grid, shape=shape, dx=dx, dy=dy, body=body)


def _keep_spacing(module: PhysicsBias, _: object) -> None:
    """After loading weights from another grid, tell it: the field spec holds, not the weights."""
    own = torch.tensor([module.spec.grid.dy, module.spec.grid.dx]).to(module.spacing)
    if not torch.allclose(module.spacing, own, rtol=1e-6, atol=0.0):
        warn(
            f"the weights belong to a grid of spacing (dy, dx) = {module.spacing.tolist()}, this "
            f"model has {own.tolist()}: it keeps its own; calibrate it on its own data"
        )
        module.spacing.copy_(own)


def _per_pixel(mask: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A mask (y, x), (b, y, x) or (b, 1, y, x) as (b, 1, y, x): one axis for the frames."""
    if mask.ndim == 4:
        mask = mask[:, 0]
    return mask.expand(shape)[:, None].to(torch.bool)
