"""Diagnostics beside the scores: embeddings on one lattice, ensembles, tokens."""

from typing import Any

import pytest
import torch

from pibert.comparison.plan import Job
from pibert.comparison.rows import _insights
from pibert.data.dataset import Samples, Window
from pibert.data.splits import Segment
from pibert.evaluation.alignment import alignment
from pibert.evaluation.insight import insight
from pibert.evaluation.scores import Scores
from pibert.fields import Normalizer
from pibert.inference import Predictor
from tests.comparison.setups import wave
from tests.helpers import randomise, tiny_model

NORMALIZER = Normalizer((1.0, 0.0), (0.6, 0.2))


def seen(name: str, count: int = 4, frames: int = 8, **options: Any) -> Any:
    """Card, arrays, the model and the samples that are its own."""
    trajectories = [wave(number, frames) for number in range(count)]
    model = randomise(tiny_model(name, trajectories[0].spec, **options)).eval()
    predictor = Predictor(model, NORMALIZER)
    samples = Samples(trajectories, window=Window(history=2), normalizer=NORMALIZER)
    later = [Segment(number, 1, None) for number in range(count)]
    own = Samples(trajectories, later, window=Window(history=1), normalizer=NORMALIZER)
    return *insight(predictor, samples, own, 0), model, own


def test_point_embeddings_are_scored_on_tokens_beside_untrained_ones() -> None:
    card, arrays, model, own = seen("fno2d")
    facts = card["embedding"]
    assert (facts["width"], facts["patch"], facts["samples"]) == (24, 4, 4 * 6)
    assert facts["layer"] == "points after the last Fourier layer"
    names = ["alignment", "alignment_untrained", "alignment_input", "alignment_input_mean"]
    assert [name for name in arrays if name.startswith("alignment")] == names
    expected = list(alignment(model, own, patch=4).values())
    assert arrays["alignment"].tolist() == pytest.approx(expected)
    assert not torch.allclose(arrays["alignment"], arrays["alignment_untrained"])
    assert "draws" not in card and not any(name.startswith("tokens/") for name in arrays)
    records = list(_insights(Job(data="waves", candidate="fno2d", seed=0), Scores(card, arrays)))
    by_name = {(r["metric"], r["component"]): r["value"] for r in records}
    assert by_name["alignment_r2", "scale 4"] == pytest.approx(expected[2])
    assert len(by_name) == 16


def test_ensemble_scores_of_a_sampler_are_in_the_records() -> None:
    card, arrays, *_ = seen("fourierflow", count=2, frames=6)
    assert (card["draws"]["frames"], card["draws"]["draws"]) == (8, 8)
    records = list(_insights(Job(data="waves", candidate="f", seed=0), Scores(card, arrays)))
    found = {(r["metric"], r["component"]): r for r in records}
    for component in ("u", "v", "all"):
        assert found["crps", component]["value"] > 0
        assert found["draws_spread", component]["unit"] == found["crps", component]["unit"]


def test_models_without_a_map_have_no_embedding_and_a_short_test_split_is_noted() -> None:
    card, arrays, *_ = seen("deeponet2d")
    assert not card and not arrays
    card, arrays, *_ = seen("unet", count=1, frames=3)
    assert "both sides of a gap" in card["embedding"]["missing"] and not arrays
