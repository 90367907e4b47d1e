"""The figure of a model's tokens."""

from dataclasses import replace

import torch

from pibert.evaluation.scores import Scores
from pibert.report.comparison.internals import tokens
from pibert.report.comparison.results import DatasetResults
from tests.report.comparison.invented_results import axes_of, invented


def with_tokens(count: int, patch: int = 4) -> DatasetResults:
    data = invented(count)
    rows, columns = data.spec.grid.shape
    shape = torch.tensor([rows // patch, columns // patch])
    own = data.scores["pibert", 0]
    arrays = {**own.arrays, "tokens/patch": torch.tensor(patch), "tokens/token_shape": shape}
    return replace(data, scores={**data.scores, ("pibert", 0): Scores(own.card, arrays)})


def test_the_gain_is_over_the_best_other_network() -> None:
    drawn = tokens(with_tokens(3))
    titles = [ax.get_title(loc="left") for ax in axes_of(drawn)]
    assert "b  Token gain over unet" in titles
    assert drawn is not None and "relative error of unet minus that of pibert" in drawn.caption


def test_without_another_network_no_gain_is_explained() -> None:
    drawn = tokens(with_tokens(1))
    assert drawn is not None and not any(
        "gain" in ax.get_title(loc="left") for ax in axes_of(drawn)
    )
    assert "Gain" not in drawn.caption and "None" not in drawn.caption
