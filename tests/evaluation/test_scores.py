"""Scores in a folder: round trip, and errors for damaged files."""

from pathlib import Path

import pytest
import torch

from pibert.evaluation.scores import FORMAT, Scores, read_card, read_scores, save_scores
from tests.helpers import refused


def make() -> Scores:
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    arrays = {
        "terms/physical/pointwise": terms,
        "rows/frame": torch.arange(5),
        "picks/truth": torch.randn(3, 2, 4, 6, generator=generator).transpose(2, 3),
        "picks/known": torch.rand(3, 6, 4, generator=generator) > 0.5,
        "strip/truth": torch.randn(2, 2, 4, 6, generator=generator).half(),
    }
    return Scores({"labels": {"model": "a"}, "values": {"x": [0.1 + 0.2, None]}}, arrays)


def test_what_was_saved_comes_back_to_the_bit(tmp_path: Path) -> None:
    first = make()
    save_scores(tmp_path, first)
    again = read_scores(tmp_path)
    assert {**again.card} == {"format": FORMAT, **first.card}
    assert set(again.arrays) == set(first.arrays)
    for name, value in first.arrays.items():
        assert again.arrays[name].dtype == value.dtype
        assert torch.equal(again.arrays[name], value)
    assert read_card(tmp_path) == again.card


@pytest.mark.parametrize("content", ["", "[1]", '{"format": 99}', "{}", '"text"', "null"])
def test_invalid_card_is_refused_with_its_path(content: str, tmp_path: Path) -> None:
    save_scores(tmp_path, make())
    (tmp_path / "scores.json").write_text(content)
    with refused("scores.json", "evaluate again"):
        read_card(tmp_path)


def test_damaged_tensors_are_refused_with_their_path(tmp_path: Path) -> None:
    save_scores(tmp_path, make())
    path = tmp_path / "scores.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with refused("scores.safetensors", "evaluate again"):
        read_scores(tmp_path)
