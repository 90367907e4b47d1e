"""The hybrid spectral encoder: Fourier and tight-frame branch, fused by a gate.

E = alpha F(x) + (1 - alpha) T(x) with alpha from a softmax over two logits: two scalars in the
paper, or a field from a small network of the input. With scalar logits the map is affine in x, and
nonexpansive when both branches are; a gate *field* is neither (see ``docs/paper-errata.md``).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.models.fourier import FourierBranch
from pibert.models.frame import FrameBranch

Gate = Literal["scalar", "spatial"]


class HybridEncoder(nn.Module):
    """Field channels to D features at every grid point; either branch may be left out."""

    def __init__(
        self,
        fourier: FourierBranch | None,
        frame: FrameBranch | None,
        *,
        gate: Gate = "scalar",
        in_channels: int = 2,
        gate_width: int = 16,
    ) -> None:
        super().__init__()
        if fourier is None and frame is None:
            raise ValueError("an encoder needs the Fourier branch, the frame branch or both")
        if gate not in ("scalar", "spatial"):
            raise ValueError(f"gate must be 'scalar' or 'spatial', found {gate!r}")
        self.fourier, self.frame = fourier, frame
        self.gate_logits: nn.Parameter | None = None
        self.gate_network: nn.Sequential | None = None
        if fourier is not None and frame is not None:
            if gate == "scalar":
                self.gate_logits = nn.Parameter(torch.zeros(2))
                """gamma_F and gamma_W of the paper."""
            else:
                self.gate_network = nn.Sequential(
                    nn.Conv2d(in_channels, gate_width, 3, padding=1),
                    nn.GELU(),
                    nn.Conv2d(gate_width, 2, 1),
                )

    @property
    def is_affine(self) -> bool:
        """Whether the map from field to features is affine, so that it can be folded."""
        return self.gate_network is None

    def gate(self, x: Float[Tensor, "b c y x"]) -> Tensor:
        """The weight alpha of the Fourier branch: a scalar, or (b, 1, y, x)."""
        if self.gate_network is not None:
            return self.gate_network(x).softmax(1)[:, :1]
        if self.gate_logits is not None:
            return self.gate_logits.softmax(0)[0]
        return torch.ones((), device=x.device, dtype=x.dtype) * (self.fourier is not None)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y x"]:
        if self.fourier is None:
            assert self.frame is not None
            return self.frame(x)
        if self.frame is None:
            return self.fourier(x)
        alpha = self.gate(x)
        return alpha * self.fourier(x) + (1 - alpha) * self.frame(x)
