"""The bias as features of queries and keys, in the widths that CPU and GPU use."""

import pytest
import torch

from pibert.models.attention import CPU_FEATURES, GPU_FEATURES, append_bias


@pytest.mark.parametrize("features", [CPU_FEATURES, GPU_FEATURES])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_appended_features_add_the_bias_to_every_logit(features: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 7, 16, generator=generator, dtype=dtype) for _ in range(2))
    bias = -5 * torch.rand(2, 7, generator=generator)
    wide_q, wide_k = append_bias(q, k, bias, features)
    assert wide_q.shape == wide_k.shape == (2, 3, 7, 16 + features)
    logits = wide_q.double() @ wide_k.double().mT / 16**0.5
    expected = q.double() @ k.double().mT / 16**0.5 + bias.double()[:, None, None, :]
    # Two features hold the bias to about twice the digits of the type.
    assert (logits - expected).abs().max() < 4 * torch.finfo(dtype).eps ** 2 + 1e-6


def test_a_bias_beyond_the_range_of_the_type_stays_finite() -> None:
    q = torch.randn(1, 1, 4, 16).half()
    _, keys = append_bias(q, q, torch.tensor([[0.0, -1.0, -3e4, -1e6]]), GPU_FEATURES)
    assert torch.isfinite(keys).all()
