import pytest
import torch

from tests.pretraining.windows import WindowSet, solver_set, street_set

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def made_on_the_way(data: WindowSet) -> None:
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
def test_negatives_of_wakes_can_be_recorded_and_are_those_of_the_cpu(history: int) -> None:
    made_on_the_way(street_set(history))


@pytest.mark.parametrize(
    ("family", "history"), [("heat", 2), ("wave", 3), ("gray-scott", 2), ("euler", 2)]
)
def test_negatives_of_other_families_can_be_recorded(family: str, history: int) -> None:
    made_on_the_way(solver_set(family, history))
