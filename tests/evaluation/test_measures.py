"""Properties of every measure of frames: additive terms, batches, masks, names."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pibert.evaluation.measure import Frames, Measure
from pibert.evaluation.measures import frame_measures
from pibert.evaluation.official import Official
from pibert.fields import FieldSpec, Grid
from tests.evaluation.masked_frames import (
    MIXED,
    MIXED_NORMALIZER,
    NORMALIZER,
    SPEC,
    make_body,
    make_frames,
)
from tests.helpers import refused

BODIES = {
    "moving": make_body(moving=True),
    "resting": make_body(moving=False)[:1].expand(5, -1, -1),
    "none": None,
}
MEASURES = frame_measures(MIXED, MIXED_NORMALIZER, has_body=True, length_unit="m")
EVERY = pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)


@EVERY
@pytest.mark.parametrize("body", BODIES)
def test_terms_do_not_depend_on_how_frames_are_split(measure: Measure, body: str) -> None:
    frames = make_frames(MIXED, body=BODIES[body])
    terms = measure.terms(frames)
    assert terms.dtype == torch.float64 and len(terms) == 5
    pieces = [measure.terms(frames[which]) for which in (slice(2), slice(2, 5))]
    torch.testing.assert_close(torch.cat(pieces), terms, rtol=1e-12, atol=1e-12)


@EVERY
def test_values_of_many_sums_are_those_of_each(measure: Measure) -> None:
    terms = measure.terms(make_frames(MIXED, body=BODIES["moving"]))
    sums = torch.stack([terms[:3].sum(0), terms[2:].sum(0)]).expand(4, 2, -1)
    values = measure.values(sums)
    assert values.shape == (4, 2, len(measure.entries))
    for index in range(2):
        alone = measure.values(sums[0, index])
        assert bool(alone.isfinite().all())
        torch.testing.assert_close(values[3, index], alone, rtol=1e-12, atol=1e-12)


@EVERY
def test_unknown_points_do_not_change_terms(measure: Measure) -> None:
    frames = make_frames(MIXED, body=BODIES["moving"])
    names = ("prediction", "truth", "last")
    here = frames.known[:, None]
    other: Any = {n: torch.where(here, getattr(frames, n), torch.nan) for n in names}
    changed = measure.terms(replace(frames, **other))
    torch.testing.assert_close(changed, measure.terms(frames), rtol=1e-12, atol=1e-12)


@EVERY
def test_nothing_known_gives_no_value(measure: Measure) -> None:
    frames = make_frames(MIXED, body=BODIES["moving"])
    nothing = replace(frames, known=torch.zeros_like(frames.known))
    terms = measure.terms(nothing)
    assert bool(terms.isfinite().all())
    assert bool(measure.values(terms.sum(0)).isnan().all())


@EVERY
def test_errors_of_a_perfect_prediction_are_zero(measure: Measure) -> None:
    frames = make_frames(MIXED, body=BODIES["moving"])
    perfect = replace(frames, prediction=frames.truth)
    values = measure.values(measure.terms(perfect).sum(0))
    for entry, value in zip(measure.entries, values.tolist(), strict=True):
        if entry.better != "none":
            best = 1.0 if entry.better == "higher" else 0.0
            assert value == pytest.approx(best, abs=1e-12), entry


def test_official_metrics_refuse_fields_without_a_velocity() -> None:
    spec = FieldSpec(channels=("u", "v"), family="reaction_diffusion", grid=SPEC.grid)
    with refused("velocity", "reaction_diffusion"):
        Official(spec=spec, frames=2)


def test_a_field_gets_the_measures_it_supports() -> None:
    def names(measures: tuple[Measure, ...]) -> set[str]:
        return {measure.name for measure in measures}

    every = names(MEASURES)
    assert len(every) == 9
    tied = {"near_body", "wake_line"}
    assert names(frame_measures(SPEC, NORMALIZER, has_body=False)) == every - tied
    assert names(frame_measures(SPEC, NORMALIZER, has_body=True)) == every
    box = replace(SPEC, grid=Grid.periodic((16, 32)))
    assert names(frame_measures(box, NORMALIZER, has_body=False)) == every - tied - {"boundary"}
    small = replace(SPEC, grid=Grid((6, 7)))
    assert names(frame_measures(small, NORMALIZER, has_body=False)) == every - tied - {
        "haar_bands",
        "spectra",
    }
    waves = FieldSpec(channels=("u", "v"), family="reaction_diffusion", grid=SPEC.grid)
    flow = {"velocity_gradients", "spectra"}
    assert names(frame_measures(waves, NORMALIZER, has_body=False)) == every - tied - flow


@pytest.mark.gpu
@EVERY
@pytest.mark.parametrize("body", BODIES)
def test_a_gpu_gives_the_same_terms(measure: Measure, body: str) -> None:
    frames = make_frames(MIXED, body=BODIES[body])
    away = on_gpu(frames)
    torch.testing.assert_close(
        measure.terms(away).cpu(), measure.terms(frames), rtol=1e-10, atol=1e-10
    )
    sums = measure.terms(away).sum(0)
    assert measure.values(sums).device.type == "cuda"


def on_gpu(frames: Frames) -> Frames:
    names = ("prediction", "truth", "last", "known")
    moved = {name: getattr(frames, name).cuda() for name in names}
    return replace(frames, **moved, body=None if frames.body is None else frames.body.cuda())
