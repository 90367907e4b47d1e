"""Cost of the physics bias: biased against unbiased fused attention, on a GPU.

Forward and backward, bfloat16, (4, 4 heads, N, 32). Each form runs in turn in the same process;
the unbiased form is timed twice, before and after the others, so that its spread shows the noise.
Dense is the same bias as a materialised N x N mask, for comparison.

    python benchmarks/attention.py
"""

import json
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pibert.models.attention import key_biased_attention

BATCH, HEADS, WIDTH = 4, 4, 32


def dense_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    n = q.shape[-2]
    mask = bias[:, None, None, :].expand(BATCH, HEADS, n, n).contiguous()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "unbiased": lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v),
    "key-biased": key_biased_attention,
    "dense mask": dense_bias,
    "unbiased again": lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v),
}


def measure(form: Callable[..., Tensor], n: int, repeats: int = 30) -> tuple[float, float]:
    """Median milliseconds and peak MiB of one forward and backward."""
    shape = (BATCH, HEADS, n, WIDTH)
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    bias = -0.12 * torch.rand(BATCH, n, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        q.grad = k.grad = v.grad = None
        form(q, k, v, bias).backward(gradient)

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**20
    # The steps are queued without waiting, as in training: launches hide behind the kernels.
    events = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events), peak


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, forward + backward")
    results: dict[int, dict[str, tuple[float, float]]] = {}
    for n in (1024, 4096, 16384):
        results[n] = {}
        for name, form in FORMS.items():
            results[n][name] = measure(form, n)
        base_time, base_peak = results[n]["unbiased"]
        for name, (time, peak) in results[n].items():
            print(
                f"N {n:6d}  {name:15s} {time:8.3f} ms  {peak:9.1f} MiB  "
                f"time x {time / base_time:5.2f}  memory x {peak / base_peak:5.2f}"
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
