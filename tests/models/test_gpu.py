"""On a GPU: the fused biased attention is the direct form, and the model is the CPU's."""

import pytest
import torch
from torch import Tensor

from pibert import build_model
from pibert.models.attention import key_biased_attention
from tests.helpers import randomise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def direct(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    logits = q @ k.mT / q.shape[-1] ** 0.5 + bias[:, None, None, :]
    return logits.softmax(-1) @ v


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("n", [64, 257, 1024])
def test_the_fused_form_is_the_direct_one(dtype: torch.dtype, tolerance: float, n: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    bias = -3 * torch.rand(2, n, generator=generator, device="cuda")
    inputs = [draw(2, 4, n, 32), draw(2, 4, n, 32), draw(2, 4, n, 32), bias.to(dtype)]
    weight = draw(2, 4, n, 32)
    results = []
    for form, precision in ((key_biased_attention, dtype), (direct, torch.float64)):
        leaves = [t.detach().to(precision, copy=True).requires_grad_() for t in inputs]
        out = form(*leaves)
        out.backward(weight.to(precision))
        results.append([out, *(leaf.grad for leaf in leaves)])
    for found, expected in zip(*results, strict=True):
        assert found is not None and expected is not None
        error = (found.double() - expected).norm() / expected.norm()
        assert error < tolerance


def test_base_on_the_gpu_is_base_on_the_cpu() -> None:
    model = randomise(build_model("pibert", preset="base")).eval()
    x, parameters = torch.randn(4, 2, 64, 64), torch.randn(4, 16)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        expected = model(x, parameters)
        model.cuda()
        found = model(x.cuda(), parameters.cuda()).cpu()
        with torch.autocast("cuda", torch.bfloat16):
            half = model(x.cuda(), parameters.cuda()).float().cpu()
    assert (found - expected).norm() < 1e-4 * expected.norm()
    assert (half - expected).norm() < 2e-2 * expected.norm()
