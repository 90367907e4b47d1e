"""FNO2d: the Fourier neural operator of Li et al. (ICLR 2021), one step of a field on a 2-D grid.

    z_0     = P (x, coordinates, parameters)             at every point
    z_{l+1} = act( irfft2(R_l(k) rfft2(z_l)(k)) + W_l z_l + c_l ),   no act after the last layer
    change  = Q_2 act(Q_1 z_L)                           at every point

R_l(k) is a separate complex matrix for every kept mode, zero for the others. Kept are the columns
k_x = 0 ... M-1 and the rows k_y = -M ... M-1, in cycles per domain, so the same weights serve every
resolution; modes that a grid does not have are dropped. The transforms are real matrix products.
Complex entries of R_l(k) start with variance 1 / d for d channels. The authors start them between 0
and 1 / d^2, which learns more slowly with AdamW at 1e-3: validation error 0.0139 in the demo, here
0.0088.

``padding`` extends the latent field by zeros at the right and the top, which separates sides that
are not periodic; the output is cropped. It counts cells, so a padded model is a different operator
on another resolution. The presets have none.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.fourier import analyse, kept_columns, kept_rows, multiply_modes, synthesise
from pibert.models.layers import Answer, Fields, Parameters
from pibert.models.stepper import BaselineConfig, Stepper, check_most, zero


@dataclass(frozen=True, kw_only=True, slots=True)
class FNO2dConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset, which has the published parameter count."""

    width: int = 32
    modes: int = 8
    """M: kept columns, and kept rows in each of the two blocks."""
    depth: int = 4
    head_width: int = 32
    padding: int = 0
    """Cells of zeros that extend the latent field at the right and the top, where not periodic."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_most(self, 1024, "padding")


PRESETS: dict[str, FNO2dConfig] = {
    "base": FNO2dConfig(),
    "modes12": FNO2dConfig(modes=12, head_width=128),
    "modes16": FNO2dConfig(modes=16, head_width=128),
}


class FNO2d(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x); any grid."""

    def __init__(self, config: FNO2dConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        d = config.width
        self.lift = nn.Conv2d(self.num_inputs + self.num_coordinates + self.num_parameters, d, 1)
        self.spectral = nn.ModuleList(
            SpectralConvolution(d, config.modes) for _ in range(config.depth)
        )
        self.skips = nn.ModuleList(nn.Conv2d(d, d, 1) for _ in range(config.depth))
        self.hidden = nn.Conv2d(d, config.head_width, 1)
        self.read_out = nn.Conv2d(config.head_width, self.out_channels, 1)
        if config.residual:
            zero(self.read_out)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        ny, nx = x.shape[-2:]
        padding, last = self.config.padding, self.config.depth - 1
        z = self.lift(self.with_parameters(self.with_coordinates(x), parameters))
        if padding:
            grid = self.spec.grid
            z = F.pad(z, (0, padding * (not grid.periodic_x), 0, padding * (not grid.periodic_y)))
        for layer, (spectral, skip) in enumerate(zip(self.spectral, self.skips, strict=True)):
            z = spectral(z) + skip(z)
            if layer < last:
                z = F.gelu(z)
        return self.read_out(F.gelu(self.hidden(z[..., :ny, :nx])))


class SpectralConvolution(nn.Module):
    """Multiplication of every kept mode by a separate complex matrix, stored as real pairs."""

    spectral_weights = ("weight",)

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.empty(2 * modes, modes, width, width, 2))
        """(row, column, in, out, re and im); rows k_y = 0 ... M-1, then -M ... -1."""
        # A kept mode keeps its size on average.
        nn.init.normal_(self.weight, std=(2 * width) ** -0.5)

    def forward(self, z: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        ny, nx = z.shape[-2:]
        # Spectral sums stay in full precision under autocast.
        with torch.autocast(z.device.type, enabled=False):
            re, im = analyse(z.to(self.weight.dtype), self.modes, self.modes)
            up, down = kept_rows(self.modes, ny)
            weight = self.weight[:, : kept_columns(self.modes, nx)]
            if up + down < 2 * self.modes:
                weight = torch.cat((weight[:up], weight[2 * self.modes - down :]))
            re, im = multiply_modes(re, im, weight)
            return synthesise(re, im, self.modes, self.modes, (ny, nx))
