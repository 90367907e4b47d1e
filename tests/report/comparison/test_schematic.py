"""The drawn architecture: every weight of the model is in one box, and the sizes are its own."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.fields import FieldSpec
from pibert.models import build_model, make_config
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.schematic import BOXES, architecture, multiresolution
from tests.report.comparison.invented_results import invented

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("pibert", {}),
    ("pibert", {"branches": "fourier", "parameter_token": False, "attention_bias": 0.0}),
    ("pibert", {"branches": "wavelet", "refine": False, "residual": False, "wavelet_levels": 2}),
    ("pibert", {"gate": "spatial", "unitary": True, "history": 3, "horizon": 2}),
    ("pibert", {"wavelet": "trained", "patch": 8}),
    ("pibert-mr", {}),
    ("pibert-mr", {"levels": 4, "own_levels": 2, "coordinates": False, "equation_terms": False}),
    ("pibert-mr", {"fourier_modes": 0, "cycles": 2, "levels": 1, "parameter_token": False}),
]


def with_model(kind: str, options: dict[str, Any]) -> DatasetResults:
    data = invented(3)
    config = asdict(make_config(kind, **options))

    def card(scores: Scores) -> dict[str, Any]:
        facts = {**scores.card["data"], "spec": FieldSpec(family="incompressible").to_dict()}
        return {**scores.card, "model": {"name": kind, "config": config}, "data": facts}

    scores = {key: Scores(card(own), own.arrays) for key, own in data.scores.items()}
    return replace(data, scores=scores)


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_the_boxes_hold_every_weight_once(kind: str, options: dict[str, Any]) -> None:
    model = build_model(kind, spec=FieldSpec(family="incompressible"), **options)
    total = sum(weight.numel() for weight in model.parameters())
    boxes = BOXES[kind](model)
    assert sum(box.count(model) for box in boxes) == total
    titles = [box.title for box in boxes]
    assert len(set(titles)) == len(titles)
    assert {title for box in boxes for title in box.after} <= set(titles)
    assert ("Residuals r" in titles) == (model.physics_bias is not None)
    state = torch.get_rng_state()
    drawn, other = architecture, multiresolution
    if kind != "pibert":
        drawn, other = other, drawn
    plot = drawn(with_model(kind, options))
    assert plot is not None and f"{total:,} weights" in plot.caption
    assert torch.equal(torch.get_rng_state(), state)
    assert other(with_model(kind, options)) is None
