"""The hybrid spectral encoder, which fuses Fourier and wavelet branch by a gate, and folding.

E = alpha F(x) + (1 - alpha) T(x) with alpha from a softmax over two logits: two scalars, or a field
computed from the input by a small network. With scalar logits the map is affine in x, and
nonexpansive when both branches are; a gate *field* is neither (see ``docs/paper-errata.md``).

With a scalar gate all layers between the field and the tokens are affine, and so are all layers
between the tokens and the decoded field. The folded form multiplies the weights first and applies
only the product to the field: the same function for a fraction of the work.

* wavelets: sub-bands of the few input channels, then mixing, projection and patch embedding as one
  convolution with stride P;
* Fourier: for a mode k the patch kernel is a number of the mode alone,
  E(k) = sum_s E[s] exp(i k s), so E(k) A W(k) maps the bin X(k) straight to tokens, and the
  inverse transform is evaluated at the token positions only;
* decoder: the d -> P^2 d expansion and the d -> c read-out as one d -> P^2 c product.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.models.fourier import (
    FourierBranch,
    analyse,
    column_phases,
    mirror_factors,
    row_phases,
)
from pibert.models.layers import to_patches
from pibert.models.wavelet import WaveletBranch

Gate = Literal["scalar", "spatial"]


class HybridEncoder(nn.Module):
    """Maps field channels to D features at every grid point; either branch may be None."""

    def __init__(
        self,
        fourier: FourierBranch | None,
        wavelet: WaveletBranch | None,
        *,
        gate: Gate = "scalar",
        in_channels: int = 2,
    ) -> None:
        super().__init__()
        self.fourier, self.wavelet = fourier, wavelet
        self.gate_logits: nn.Parameter | None = None
        self.gate_network: nn.Sequential | None = None
        if fourier is not None and wavelet is not None:
            if gate == "scalar":
                self.gate_logits = nn.Parameter(torch.zeros(2))
                """gamma_F and gamma_W of the paper."""
            else:
                self.gate_network = nn.Sequential(
                    nn.Conv2d(in_channels, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 2, 1)
                )

    @property
    def is_affine(self) -> bool:
        """Whether the map from field to features is affine and can be folded."""
        return self.gate_network is None

    def gate(self, x: Float[Tensor, "b c y x"]) -> Tensor:
        """Return the weight alpha of the Fourier branch: a scalar, or (b, 1, y, x)."""
        if self.gate_network is not None:
            return self.gate_network(x).softmax(1)[:, :1]
        if self.gate_logits is not None:
            return self.gate_logits.softmax(0)[0]
        return torch.ones((), device=x.device, dtype=x.dtype) * (self.fourier is not None)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y x"]:
        if self.fourier is None:
            assert self.wavelet is not None
            return self.wavelet(x)
        if self.wavelet is None:
            return self.fourier(x)
        alpha = self.gate(x)
        return alpha * self.fourier(x) + (1 - alpha) * self.wavelet(x)


def folded_tokens(
    x: Float[Tensor, "b c y x"],
    encoder: HybridEncoder,
    projection: nn.Conv2d,
    patch_embedding: nn.Conv2d,
) -> Float[Tensor, "b n d"]:
    """Return the tokens of ``patch_embedding(projection(encoder(x)))``, row by row."""
    kernel, project = patch_embedding.weight, projection.weight[:, :, 0, 0]
    assert projection.bias is not None and patch_embedding.bias is not None
    alpha = encoder.gate(x)
    offset = projection.bias
    tokens = torch.zeros((), dtype=x.dtype, device=x.device)
    if encoder.fourier is not None:
        tokens = tokens + alpha * _fourier_tokens(x, encoder.fourier, project, kernel)
    if encoder.wavelet is not None:
        share = 1 - alpha
        mixing = share * (project @ encoder.wavelet.mixing())  # (d, s)
        folded = torch.einsum("oipq,is->ospq", kernel, mixing).flatten(1)  # (o, s p q)
        bands = to_patches(encoder.wavelet.transform(x), kernel.shape[-1])  # (b, n, s p q)
        tokens = tokens + bands @ folded.mT
        assert encoder.wavelet.mix.bias is not None
        offset = offset + share * (project @ encoder.wavelet.mix.bias)
    return tokens + (patch_embedding.bias + kernel.sum((-2, -1)) @ offset)


def _fourier_tokens(
    x: Tensor,
    branch: FourierBranch,
    project: Float[Tensor, "d d"],
    kernel: Float[Tensor, "o d p p"],
) -> Float[Tensor, "b n o"]:
    b, c, ny, nx = x.shape
    patch, width = kernel.shape[-1], kernel.shape[0]
    g_re, g_im = _mode_to_token(branch, project, kernel, (ny, nx))  # (k, r, c, o)
    re, im = analyse(x, branch.modes, branch.columns)  # (b, c, r, k)
    columns, rows = g_re.shape[:2]
    # One real product per mode: [re, im] times [[g_re, g_im], [-g_im, g_re]].
    left = torch.cat((re, im), dim=1).permute(3, 2, 0, 1).reshape(columns * rows, b, 2 * c)
    right = torch.cat(
        (torch.cat((g_re, g_im), dim=-1), torch.cat((-g_im, g_re), dim=-1)), dim=2
    ).reshape(columns * rows, 2 * c, 2 * width)
    mixed = (left @ right).view(columns, rows, b, 2, width)
    # Inverse transform at every patch's corner: along y for each column, then along x.
    cos_y, sin_y = row_phases(branch.modes, ny, patch, x.dtype, x.device)  # (ty, r)
    turn = torch.stack((torch.cat((cos_y, -sin_y), -1), torch.cat((sin_y, cos_y), -1)))
    turn = turn.view(2 * cos_y.shape[0], 2 * rows)  # (2 ty, 2 r)
    mixed = mixed.permute(0, 3, 1, 2, 4).reshape(columns, 2 * rows, b * width)
    along = (turn @ mixed).view(columns, 2, cos_y.shape[0] * b * width)
    cos_x, sin_x = column_phases(branch.columns, nx, patch, x.dtype, x.device)  # (tx, k)
    factors = mirror_factors(branch.columns, nx, x.dtype, x.device) / (ny * nx)
    across = torch.stack((cos_x * factors, -sin_x * factors), dim=-1).flatten(1)  # (tx, 2 k)
    tokens = across @ along.reshape(2 * columns, -1)
    tokens = tokens.view(cos_x.shape[0], cos_y.shape[0], b, width)
    return tokens.permute(2, 1, 0, 3).flatten(1, 2)  # (b, ty tx, o)


def _mode_to_token(
    branch: FourierBranch,
    project: Float[Tensor, "d d"],
    kernel: Float[Tensor, "o d p p"],
    shape: tuple[int, int],
) -> tuple[Float[Tensor, "k r c o"], Float[Tensor, "k r c o"]]:
    """Return E(k) A W(k) of every kept mode, real and imaginary part."""
    (ny, nx), patch = shape, kernel.shape[-1]
    weight = branch.weights(shape)  # (r, k, c, d, 2)
    rows, columns, channels, _, _ = weight.shape
    width = kernel.shape[0]
    # A W(k), arranged (k, d, [re, im] r c).
    mixed = torch.einsum("rkciz,oi->kozrc", weight, project).reshape(
        columns, -1, 2 * rows * channels
    )
    # The patch kernel's transform along x, (k, [re, im] sy o, d); the sum over x offsets is short.
    cos_x, sin_x = column_phases(branch.columns, nx, 1, kernel.dtype, kernel.device)
    phases = torch.stack((cos_x[:patch], sin_x[:patch]))  # (z, sx, k)
    kernel_x = torch.einsum("oiyx,zxk->kzyoi", kernel, phases).reshape(
        columns, -1, project.shape[0]
    )
    both = (kernel_x @ mixed).view(columns, 2, patch, width, 2, rows, channels)
    re = both[:, 0, :, :, 0] - both[:, 1, :, :, 1]  # (k, sy, o, r, c)
    im = both[:, 0, :, :, 1] + both[:, 1, :, :, 0]
    # ... and along y.
    cos_y, sin_y = row_phases(branch.modes, ny, 1, kernel.dtype, kernel.device)
    cos, sin = cos_y[:patch, None, :, None], sin_y[:patch, None, :, None]  # (sy, 1, r, 1)
    g_re = (re * cos - im * sin).sum(1)  # (k, o, r, c)
    g_im = (re * sin + im * cos).sum(1)
    return g_re.permute(0, 2, 3, 1), g_im.permute(0, 2, 3, 1)


def folded_decoding(
    tokens: Float[Tensor, "b n d"], expand: nn.Linear, read_out: nn.Conv2d
) -> Float[Tensor, "b n f"]:
    """Apply ``read_out`` to every point of ``expand(tokens)``; returns (y, x, channel) last."""
    assert read_out.bias is not None
    matrix = read_out.weight[:, :, 0, 0]  # (c, d)
    width = matrix.shape[1]
    weight = torch.einsum("cd,sdi->sci", matrix, expand.weight.view(-1, width, expand.in_features))
    bias = expand.bias.view(-1, width) @ matrix.mT + read_out.bias  # (s, c)
    return tokens @ weight.flatten(0, 1).mT + bias.flatten()
