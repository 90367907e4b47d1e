"""Slices and wake line against loops over frames."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.flow_structure import differentiate
from pibert.evaluation.regions import Slices, WakeLine, paper_column
from pibert.fields import FieldSpec
from pibert.physics import derivatives
from tests.evaluation.masked_frames import (
    SPEC,
    make_body,
    make_frames,
    part,
    values_of,
)

FRAMES = make_frames(body=make_body(moving=True))
# By hand: the diameter is 3 rows of 0.2 = 2 columns of 0.3; the body's centre lies at columns 6.5,
# 6.5, 5.5, 5.5, 4.5, half-way places belong to the next column.
COLUMNS = {
    "near_body": [8, 8, 7, 7, 6],
    "wake_core": [11, 11, 10, 10, 9],
    "far_wake": [15, 15, 14, 14, 13],
    "column_11": [3] * 5,
    "column_32": [11] * 5,
    "column_52": [17] * 5,
}
ROWS = [5, 6, 7, 8, 9]
BEHIND = [9, 9, 8, 8, 7]


def component(fields: torch.Tensor, name: str) -> np.ndarray:
    u, v = fields[:, 0].numpy(), fields[:, 1].numpy()
    return {"u": u, "v": v, "|u|": np.hypot(u, v)}[name]


@pytest.mark.parametrize("region", COLUMNS)
@pytest.mark.parametrize("name", ["u", "v", "|u|"])
def test_slice_errors_are_means_over_frames_of_relative_errors(region: str, name: str) -> None:
    found = values_of(Slices(spec=SPEC, has_body=True), FRAMES)
    p, y = (component(f, name) for f in (FRAMES.prediction, FRAMES.truth))
    errors = []
    for t, column in enumerate(COLUMNS[region]):
        known = FRAMES.known[t, :, column].numpy()
        wrong, truth = (p - y)[t, known, column], y[t, known, column]
        errors.append(np.linalg.norm(wrong) / np.linalg.norm(truth))
    assert found[f"slice_{region}_rel_l2", name] == pytest.approx(np.mean(errors), rel=1e-12)


def test_columns_beyond_the_view_are_clipped_and_the_papers_are_scaled() -> None:
    late = make_body(moving=False).roll(10, 2)  # centre 16.5, the far wake at 24.5 of 21
    frames = make_frames(body=late)
    found = values_of(Slices(spec=SPEC, has_body=True), frames)
    p, y = (f[:, 0].numpy()[:, :, -1] for f in (frames.prediction, frames.truth))
    known = frames.known[:, :, -1].numpy()
    norms = [np.linalg.norm(np.where(known, f, 0.0), axis=1) for f in (p - y, y)]
    expected = np.mean(norms[0] / norms[1])
    assert found["slice_far_wake_rel_l2", "u"] == pytest.approx(expected, rel=1e-12)
    assert [paper_column(n, 64) for n in (11, 32, 52)] == [11, 32, 52]
    assert [paper_column(n, 128) for n in (11, 32, 52)] == [22, 64, 104]


def test_frames_without_a_body_do_not_count_where_columns_are_tied_to_it() -> None:
    body = make_body(moving=True)
    body[2:] = False
    frames = make_frames(body=body)
    found, early = (
        values_of(Slices(spec=SPEC, has_body=True), some)
        for some in (frames, part(frames, slice(2)))
    )
    for region in ("near_body", "wake_core", "far_wake"):
        key = (f"slice_{region}_rel_l2", "v")
        assert found[key] == pytest.approx(early[key], rel=1e-13)
    nobody = values_of(Slices(spec=SPEC, has_body=True), make_frames())
    assert math.isnan(nobody["slice_near_body_rel_l2", "u"])
    assert nobody["slice_column_32_rel_l2", "u"] > 0
    free = Slices(spec=SPEC, has_body=False)
    assert not any("body" in entry.metric or "wake" in entry.metric for entry in free.entries)


def test_the_wake_line_is_the_row_of_the_centre_behind_the_body() -> None:
    found = values_of(WakeLine(spec=SPEC), FRAMES)
    spun, spin, defined = differentiate(derivatives.vorticity, FRAMES, (0, 1))
    errors: dict[str, list[float]] = {"u": [], "vorticity": []}
    for t, (row, first) in enumerate(zip(ROWS, BEHIND, strict=True)):
        line = (t, row, slice(first, None))
        for name, p, y, here in (
            ("u", FRAMES.prediction[:, 0], FRAMES.truth[:, 0], FRAMES.known),
            ("vorticity", spun, spin, defined),
        ):
            wrong, truth = (p[line] - y[line])[here[line]], y[line][here[line]]
            errors[name].append(float(wrong.norm() / truth.norm()))
    for name, values in errors.items():
        assert found["wake_line_rel_l2", name] == pytest.approx(np.mean(values), rel=1e-12)


def test_flows_without_a_velocity_have_no_wake() -> None:
    spec = FieldSpec(channels=("T",), family=None, grid=SPEC.grid)
    with pytest.raises(ValueError, match="expected a velocity"):
        WakeLine(spec=spec)


@pytest.mark.parametrize("kind", [Slices, WakeLine])
def test_a_body_upstream_of_another_moves_no_line(kind: type) -> None:
    rear = make_body(moving=False)
    both = rear.clone()
    both[:, 1:12, 1:3] = True  # larger, and columns 3 and 4 lie between them
    frames = make_frames(body=both)
    measure = kind(spec=SPEC, has_body=True) if kind is Slices else kind(spec=SPEC)
    found, alone = (values_of(measure, replace(frames, body=own)) for own in (both, rear))
    assert found == pytest.approx(alone, rel=1e-13) and len(found) > 1
