"""Token maps and what embeddings encode: panels hold the arrays of the scores."""

import numpy as np
import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.report.comparison.internals import embedding_alignment, tokens
from pibert.report.comparison.results import DatasetResults
from tests.report.comparison.invented_results import axes_of, invented, legend_of, once, without


def panel(drawn, word):
    return next(ax for ax in axes_of(drawn) if word in ax.get_title(loc="left"))


def test_maps_show_the_gain_and_the_residual_patch_by_patch():
    data, drawn = invented(3), once(tokens, 3)
    image = panel(drawn, "gain over unet").images[0]
    own, rival = (data.first(name).arrays["picks/prediction"][1] for name in ("pibert", "unet"))
    truth = data.reference.arrays["picks/truth"][1]
    patch = (slice(None), slice(8, 12), slice(20, 24))
    errors = [(field[patch] - truth[patch]).norm() / truth[patch].norm() for field in (rival, own)]
    assert np.allclose(image.get_array()[8:12, 20:24], float(errors[0] - errors[1]), rtol=1e-5)
    low, high = image.get_clim()
    assert low == -high
    residual = data.first("pibert").arrays["tokens/residual"][1].numpy()
    assert np.allclose(panel(drawn, "Residual").images[0].get_array()[::4, ::4], residual)


@pytest.mark.parametrize(("count", "trained"), [(3, 2), (15, 10)])
def test_every_model_with_embeddings_has_a_line_over_the_scales(count, trained):
    data = invented(count)
    ax = axes_of(once(embedding_alignment, count))[0]
    lines = [line for line in ax.lines if len(line.get_xdata()) == 4]
    assert len(lines) == trained
    unet = next(line for line in lines if line.get_color() == data.colour("unet"))
    assert np.allclose(unet.get_ydata(), [0.46, 0.56, 0.66, 0.76])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4", "8"]
    assert embedding_alignment(without(data, "alignment")) is None


def test_the_input_and_untrained_weights_stand_beside_the_models():
    data = invented(3)
    more = {"untrained": 0.3, "input": 0.9, "input_mean": 0.1}
    arrays = {f"alignment_{name}": torch.full((4,), v).double() for name, v in more.items()}
    scores = {
        key: Scores(own.card | {"embedding": {"width": 7}}, dict(own.arrays) | arrays)
        if "alignment" in own.arrays
        else own
        for key, own in data.scores.items()
    }
    drawn = embedding_alignment(DatasetResults(data.name, data.results, scores))
    left, right = axes_of(drawn)
    lines = [line for line in left.lines if len(line.get_xdata()) == 4]
    # Two models, and the input twice.
    assert np.allclose(sorted(line.get_ydata()[0] for line in lines), [0.1, 0.46, 0.5, 0.9])
    assert {"input: values", "input: mean"} <= set(legend_of(left))
    assert [label.get_text() for label in right.get_yticklabels()] == ["pibert (7)", "unet (7)"]
    dots = sorted(line.get_xdata()[0] for line in right.lines if line.get_marker() == "o")
    assert np.allclose(dots, [0.3, 0.3, 0.61, 0.65])
