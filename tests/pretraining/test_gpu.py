"""Masks, corruption and negatives on a GPU."""

import pytest
import torch

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.pretraining.corruption import corrupt
from pibert.pretraining.masks import KINDS, Masking, choose
from tests.pretraining.batches import make_batch
from tests.pretraining.windows import WindowSet, solver_set, street_set

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SPEC = FieldSpec(family="incompressible", grid=Grid((24, 40), dx=0.3, dy=0.2), dt=0.1)
NORMALIZER = Normalizer((0.1, 0.0), (2.0, 0.5))


@pytest.mark.parametrize(
    ("kind", "guide"), [*((kind, "vorticity") for kind in KINDS), ("structured", "residual")]
)
def test_nothing_waits_for_the_device(kind: str, guide: str) -> None:
    batch = make_batch(torch.randn(4, 4, 24, 40)).to("cuda")
    masking = Masking(kinds=(kind, "pixels"), guide=guide)  # type: ignore[arg-type]
    choose(batch, masking, SPEC, NORMALIZER)  # constants are brought to the device once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        hidden = choose(batch, masking, SPEC, NORMALIZER)
        corrupt(batch, hidden, masking, SPEC, NORMALIZER)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_corrupted_as_on_the_cpu(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.rand(6, 24, 40, generator=generator) > 0.1
    batch = make_batch(torch.randn(6, 2, 24, 40, generator=generator), known)
    masking = Masking(kinds=(kind,))  # type: ignore[arg-type]
    seen = []
    for device in ("cpu", "cuda"):
        there = batch.to(device)
        hidden = choose(there, masking, SPEC, NORMALIZER)
        seen.append(corrupt(there, hidden, masking, SPEC, NORMALIZER))
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-4)


def check_on_gpu(data: WindowSet) -> None:
    """Every kind on the CPU, on the GPU, and replayed from a recording of the GPU's work."""
    batch = data.samples.batch(range(0, len(data.samples), 7))
    there = batch.to("cuda")
    near, far = data.model(), data.model().to("cuda")
    negatives = data.negatives()
    for kind in negatives.kinds:
        expected = data.negatives().make(kind, batch, near)
        found = negatives.make(kind, there, far)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = negatives.make(kind, there, far)
        graph.replay()
        for mine, replayed, theirs in zip(found, recorded, expected, strict=True):
            torch.testing.assert_close(replayed, mine, rtol=1e-4, atol=1e-4)
            if kind != "adversarial":  # there rounding may choose another amplitude
                torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("history", [1, 2])
def test_negatives_of_wakes_can_be_captured_and_match_the_cpu(history: int) -> None:
    check_on_gpu(street_set(history))


@pytest.mark.parametrize(
    ("family", "history"), [("heat", 2), ("wave", 3), ("gray-scott", 2), ("euler", 2)]
)
def test_negatives_of_other_families_can_be_captured(family: str, history: int) -> None:
    check_on_gpu(solver_set(family, history))
