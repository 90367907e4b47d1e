"""Stateless random numbers of samples."""

from statistics import NormalDist

import pytest
import torch

from pibert import sample_rng


def reference(seed: int, purpose: str, index: int) -> int:
    """splitmix64's finaliser on the same counter, in Python's whole numbers."""

    def mix(z: int) -> int:
        z &= 2**64 - 1
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
        return z ^ (z >> 31)

    return mix(mix(seed + sample_rng._hash_text(purpose)) + (index + 1) * 0x9E3779B97F4A7C15) >> 40


def test_numbers_are_those_of_the_published_hash():
    seeds = torch.tensor([0, 7, -3, 2**62])
    found = sample_rng.uniform(seeds, "masks", 2, 3)
    for row, seed in enumerate(seeds.tolist()):
        for index in range(6):
            expected = reference(seed, "masks", index) / 2**24
            assert found[row].flatten()[index].item() == expected


def test_numbers_of_a_sample_do_not_depend_on_its_batch():
    seeds = sample_rng.sample_seeds(3, 5, torch.arange(6))
    together = sample_rng.normal(seeds, "noise", 4)
    for row in range(6):
        assert torch.equal(sample_rng.normal(seeds[row : row + 1], "noise", 4)[0], together[row])


def test_numbers_are_uniform_and_normal():
    seeds = sample_rng.sample_seeds(0, 0, torch.arange(200))
    uniform = sample_rng.uniform(seeds, "a", 1000).double()
    share = uniform.flatten().histc(10, 0.0, 1.0) / uniform.numel()
    assert (share - 0.1).abs().max() < 4e-3
    normal = sample_rng.normal(seeds, "a", 1000).double()
    moments = [(normal**power).mean().item() for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0.0, 1.0, 0.0, 3.0], abs=0.03)
    assert normal.isfinite().all()


@pytest.mark.parametrize("without_double", [(), ("cpu",)])
def test_the_tails_of_the_normal_distribution_are_finite_and_right(
    monkeypatch: pytest.MonkeyPatch, without_double: tuple[str, ...]
):
    ends = [0, 1, 2**23 - 1, 2**23, 2**24 - 2, 2**24 - 1]
    monkeypatch.setattr(sample_rng, "_integers", lambda *_: torch.tensor([ends]))
    monkeypatch.setattr(sample_rng, "_WITHOUT_DOUBLE", without_double)
    found = sample_rng.normal(torch.zeros(1, dtype=torch.int64), "a", 6)[0]
    expected = [NormalDist().inv_cdf((end + 0.5) / 2**24) for end in ends]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_whole_numbers_are_evenly_spread_and_below_the_limit():
    found = sample_rng.integer(sample_rng.sample_seeds(0, 0, torch.arange(6000)), "kind", 6)
    counts = torch.bincount(found, minlength=6)
    assert len(counts) == 6
    assert (counts - 1000).abs().max() < 130
    with pytest.raises(ValueError, match="at least one choice"):
        sample_rng.integer(torch.arange(3), "kind", 0)
