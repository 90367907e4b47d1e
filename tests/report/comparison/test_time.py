"""Spectra, series, strips, animations and rollouts: lines and panels hold the scores."""

import numpy as np
import pytest
import torch

from pibert.evaluation.scales import Spectra, wavenumbers
from pibert.evaluation.scores import Scores
from pibert.evaluation.temporal import power_density
from pibert.physics import derivatives
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.spectra import TERMS, power_spectra, spectra
from pibert.report.comparison.time import (
    animation,
    probe_traces,
    rollout,
    timestep_strip,
)
from tests.report.comparison.invented_results import (
    STRIP,
    axes_of,
    invented,
    legend_of,
    once,
    without,
)


def line_of(ax, colour):
    return next(line for line in ax.lines if line.get_color() == colour)


@pytest.mark.parametrize(
    ("make", "arrays"),
    [
        (spectra, TERMS),
        (power_spectra, "probes/"),
        (probe_traces, "probes/"),
        (timestep_strip, "strip/"),
        (animation, "strip/"),
        (rollout, "rollout/"),
    ],
)
def test_without_its_arrays_a_figure_is_left_out(make, arrays):
    assert make(without(invented(3), arrays)) is None


@pytest.mark.parametrize("count", [3, 15])
def test_radial_spectra_are_those_of_the_terms(count):
    data = invented(count)
    energy, error = axes_of(once(spectra, count))
    expected = Spectra(spec=data.spec).curves(data.first("unet").arrays[TERMS].sum(0))
    colour = data.colour("unet")
    assert np.allclose(line_of(energy, colour).get_xdata(), wavenumbers(data.spec.grid))
    assert np.allclose(line_of(energy, colour).get_ydata(), expected["prediction"])
    assert np.allclose(line_of(error, colour).get_ydata(), expected["error"] / expected["truth"])
    assert {text.get_text() for text in error.texts} == {"low", "mid", "high"}
    assert set(legend_of(error)) == set(data.shown(9))
    assert "rad/m" in energy.get_xlabel() and "(m/s)²" in energy.get_ylabel()


def test_panels_show_the_vorticity_with_body_and_unknown_points_masked():
    data = invented(3)
    shown = axes_of(once(timestep_strip, 3))[0].images[0].get_array()
    u, v = data.reference.arrays["strip/truth"][0].double()
    spin = derivatives.vorticity(u, v, data.spec.grid)
    body = data.spec.grid.body
    assert body is not None
    assert shown.mask[body.numpy()].all() and (~shown.mask).mean() > 0.8
    # Away from the body the stencil is the plain one.
    assert np.allclose(shown[:, 25:], spin[:, 25:])
    known = torch.ones(STRIP, *data.spec.grid.shape, dtype=torch.bool)
    known[:, :, 20] = False
    scores = {
        key: Scores(own.card, {**own.arrays, "strip/known": known})
        for key, own in data.scores.items()
    }
    drawn = timestep_strip(DatasetResults(data.name, data.results, scores))
    assert axes_of(drawn)[0].images[0].get_array().mask[:, 20].all()


def test_the_animation_is_a_small_moving_png_of_all_frames():
    data = invented(3)
    scores = {
        key: Scores(
            own.card, {n: v[:4] if n.startswith("strip/") else v for n, v in own.arrays.items()}
        )
        for key, own in data.scores.items()
    }
    moving = animation(DatasetResults(data.name, data.results, scores))
    assert moving is not None and moving.data.startswith(b"\x89PNG")
    place = moving.data.index(b"acTL")
    assert int.from_bytes(moving.data[place + 4 : place + 8], "big") == 4
    assert len(moving.data) < 1_500_000


@pytest.mark.parametrize("count", [3, 15])
def test_rollout_curves_are_those_of_all_components(count):
    data = invented(count)
    error, skill, correlation = axes_of(once(rollout, count))
    lead = np.arange(1, 13)
    for ax, expected in (
        (error, 0.004 * lead**1.5),
        (skill, 1 - 0.016 * lead**1.5),
        (correlation, np.exp(-0.004 * lead**1.5)),
    ):
        assert np.allclose(line_of(ax, data.colour("unet")).get_ydata(), expected)
    assert set(legend_of(correlation)) == set(data.shown(9))


def test_power_spectra_are_means_over_the_probes():
    data = invented(3)
    ax, ratios = axes_of(once(power_spectra, 3))
    frequency, power = power_density(data.first("unet").arrays["probes/prediction"][..., 1], 0.25)
    line = line_of(ax, data.colour("unet"))
    assert np.allclose(line.get_xdata(), frequency[1:])
    assert np.allclose(line.get_ydata(), power.mean(1)[1:])
    _, truth = power_density(data.first("unet").arrays["probes/truth"][..., 1], 0.25)
    ratio = line_of(ratios, data.colour("unet")).get_ydata()
    assert np.allclose(ratio[:12], (power.mean(1)[1:] / truth.mean(1)[1:])[:12])
    assert ax.get_xlabel() == "frequency f [1/s]"
