"""The wake oscillator: limits with known solutions, the published response, and the fit."""

from dataclasses import replace
from math import pi

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from pibert.evaluation.vibration import Vibration, vibration
from pibert.evaluation.wake_oscillator import (
    GUESSES,
    Mounting,
    Response,
    WakeOscillator,
    fit_wake_oscillator,
)
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from tests.helpers import refused

PUBLISHED = WakeOscillator()
INTERVAL = 0.25


def late(path: np.ndarray, interval: float) -> tuple[np.ndarray, np.ndarray]:
    """The second half of a series, and its time."""
    half = path[len(path) // 2 :]
    return half, interval * np.arange(len(half))


def record(model: WakeOscillator, mounting: Mounting, frames: int = 200) -> Response:
    """A recording that obeys the model, after it has settled."""
    y, v, q, r = model.simulate(mounting, 400, 0.5, (0.0, 0.0, 0.1, 0.0))
    y, v, lift = model_series(model, mounting, (y[-1], v[-1], q[-1], r[-1]), frames)
    return Response(mounting=mounting, interval=INTERVAL, displacement=y, velocity=v, lift=lift)


def model_series(
    model: WakeOscillator, mounting: Mounting, start: tuple[float, ...], frames: int
) -> np.ndarray:
    """Displacement, velocity and the lift that moves the body's own mass, damper and spring."""
    y, v, q, _ = model.simulate(mounting, frames, INTERVAL, start)
    mass = mounting.mass + 0.25 * pi * model.added_mass
    omega = 2 * pi * model.shedding_frequency(mounting.reynolds)
    fluid = mounting.damping + model.stall * omega
    acceleration = (0.25 * model.lift * q - fluid * v - mounting.stiffness * y) / mass
    lift = 2 * (mounting.mass * acceleration + mounting.damping * v + mounting.stiffness * y)
    return np.stack((y, v, lift))


def test_an_uncoupled_wake_settles_at_amplitude_two_and_the_strouhal_number() -> None:
    model = replace(PUBLISHED, coupling=0.0, epsilon=0.05)
    _, _, q, _ = model.simulate(
        Mounting(mass=1.0, reduced_velocity=5.0), 1600, 0.25, (0.0, 0.0, 0.1, 0.0)
    )
    found = vibration(*late(q, 0.25))
    assert found.amplitude == pytest.approx(2.0, rel=0.01)
    assert found.frequency == pytest.approx(model.strouhal, rel=0.003)


def test_a_body_without_fluid_rings_at_its_natural_frequency_and_decays() -> None:
    model = replace(PUBLISHED, lift=1e-12, stall=0.0, added_mass=0.0)
    mounting = Mounting(mass=2.0, reduced_velocity=7.0, damping_ratio=0.02)
    time = 0.25 * np.arange(1, 401)
    y, *_ = model.simulate(mounting, 400, 0.25, (1.0, 0.0, 0.0, 0.0))
    omega = 2 * pi / 7.0
    damped = omega * np.sqrt(1 - 0.02**2)
    exact = np.exp(-0.02 * omega * time) * (
        np.cos(damped * time) + 0.02 * omega / damped * np.sin(damped * time)
    )
    assert np.abs(y - exact).max() < 1e-3


def harmonic_balance(model: WakeOscillator, mounting: Mounting) -> tuple[float, float]:
    """Amplitude in D and frequency in U/D of y if both oscillators are harmonic.

    With y = Y e^{i w t} and q = Q e^{i w t}, w in units of 2 pi St:
    (d^2 - w^2 + i l w) Y = M Q and (1 - w^2 + i e w (|Q|^2 / 4 - 1)) Q = -A w^2 Y.
    """
    omega = 2 * pi * model.strouhal
    mass = mounting.mass + 0.25 * pi * model.added_mass
    square = mounting.stiffness / mass / omega**2
    loss = (mounting.damping / omega + model.stall) / mass
    force = 0.25 * model.lift / (mass * omega**2)

    def denominator(w: float) -> float:
        return (square - w**2) ** 2 + (loss * w) ** 2

    def real(w: float) -> float:
        return 1 - w**2 + model.coupling * force * w**2 * (square - w**2) / denominator(w)

    grid = np.linspace(0.3, 2.0, 2000)
    signs = np.sign([real(w) for w in grid])
    (first,) = np.flatnonzero(np.diff(signs))
    w = brentq(real, grid[first], grid[first + 1])
    wake = model.coupling * force * loss * w**2 / (model.epsilon * denominator(w))
    q = 2 * np.sqrt(1 + wake)
    return force * q / np.sqrt(denominator(w)), w * model.strouhal


def settled(model: WakeOscillator, mounting: Mounting) -> Vibration:
    y = model.simulate(mounting, 1200, 0.5, (0.0, 0.0, 0.1, 0.0))[0]
    return vibration(*late(y, 0.5))


@pytest.mark.parametrize("reduced", [3.0, 5.5, 8.0])
def test_a_nearly_harmonic_response_agrees_with_harmonic_balance(reduced: float) -> None:
    model = replace(PUBLISHED, epsilon=0.03, coupling=1.2)
    mounting = Mounting(mass=2.0, reduced_velocity=reduced, damping_ratio=0.003)
    found = settled(model, mounting)
    amplitude, frequency = harmonic_balance(model, mounting)
    assert found.amplitude == pytest.approx(amplitude, rel=0.03)
    assert found.frequency == pytest.approx(frequency, rel=0.01)


def test_the_published_coefficients_give_lock_in_around_the_strouhal_frequency() -> None:
    found = {
        u: settled(PUBLISHED, Mounting(mass=10.0, reduced_velocity=u)) for u in (2.5, 5.5, 9.0)
    }
    regimes = {u: response.regime(1 / u) for u, response in found.items()}
    assert regimes[5.5] == "lock-in"
    assert regimes[2.5] != "lock-in"
    assert found[5.5].amplitude > 5 * found[2.5].amplitude
    assert found[5.5].amplitude > 2 * found[9.0].amplitude


def test_a_prediction_continues_a_recording_of_its_own_kind() -> None:
    whole = record(PUBLISHED, Mounting(mass=2.0, reduced_velocity=5.0), 103)
    y, v, lift = PUBLISHED.predict(whole.part(0, 3), 100)
    for found, true in ((y, whole.displacement), (v, whole.velocity), (lift, whole.lift)):
        assert np.abs(found - true[3:]).max() < 0.02 * np.abs(true).max()


def test_the_fit_recovers_the_motion_and_the_strouhal_number_of_other_coefficients() -> None:
    true = WakeOscillator(0.17, 0.45, 0.15, 7.0, 0.5, 1.1)
    train = [record(true, Mounting(mass=2.0, reduced_velocity=u), 120) for u in (3.0, 5.0, 8.0)]
    fitted = fit_wake_oscillator(train, GUESSES[1:2])
    assert fitted.strouhal == pytest.approx(0.17, rel=0.02)
    unseen = record(true, Mounting(mass=3.0, reduced_velocity=6.0))
    error = fitted.predict(unseen.part(0, 3), 100)[0] - unseen.displacement[3:103]
    assert np.abs(error).max() < 0.1 * np.abs(unseen.displacement).max()


def test_the_strouhal_number_follows_the_reynolds_number_if_it_was_fitted_so() -> None:
    model = replace(PUBLISHED, strouhal=0.212, reynolds_shift=21.2)
    assert model.shedding_frequency(100.0) == pytest.approx(0.212 * (1 - 0.212))
    with pytest.raises(ValueError, match="Reynolds"):
        model.shedding_frequency(None)


def make_trajectory(time: torch.Tensor, **series: torch.Tensor) -> Trajectory:
    spec = FieldSpec(
        channels=("u", "v"),
        units=("m/s", "m/s"),
        parameters=tuple(Parameter(name=n) for n in ("Re", "mass_ratio", "reduced_velocity")),
        dt=0.1,
        grid=Grid((3, 5), dx=0.1, dy=0.2),
        family="incompressible",
        reference_length=0.03,
        viscosity=1e-6,
    )
    return Trajectory(
        name="flow",
        states=torch.zeros(len(time), 2, 3, 5),
        time=time,
        spec=spec,
        parameters={"Re": 3000.0, "mass_ratio": 4.0, "reduced_velocity": 5.0},
        series=series,
    )


def test_a_trajectory_in_si_units_gives_times_in_diameters_over_speed() -> None:
    time = 0.1 * torch.arange(5, dtype=torch.float64)
    series = {name: torch.rand(5) for name in ("displacement", "velocity", "lift")}
    response = Response.of_trajectory(make_trajectory(time, **series), damping_ratio=0.01)
    # U = 3000 * 1e-6 / 0.03 = 0.1 m/s, so 0.1 s are a third of D/U = 0.3 s.
    assert response.interval == pytest.approx(1 / 3)
    assert response.mounting.mass == pytest.approx(pi)
    assert response.lift.tolist() == pytest.approx(series["lift"].tolist())


def test_a_trajectory_without_its_state_with_gaps_or_unknown_values_is_refused() -> None:
    time = 0.1 * torch.arange(5, dtype=torch.float64)
    series = {name: torch.rand(5) for name in ("displacement", "velocity", "lift")}
    unknown = series | {"lift": torch.tensor([0.1, 0.2, torch.nan, 0.3, 0.1])}
    uneven = time + 0.05 * (torch.arange(5) > 2)
    for trajectory, named in (
        (make_trajectory(time), ("displacement", "lift", "velocity")),
        (make_trajectory(uneven, **series), ("evenly spaced",)),
        (make_trajectory(time, **unknown), ("not finite",)),
    ):
        with refused(*named):
            Response.of_trajectory(trajectory, damping_ratio=0.0)
