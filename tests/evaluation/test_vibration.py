import numpy as np
import pytest

from pibert.evaluation.vibration import compare_vibrations, phase_error, vibration

TIME = np.arange(0, 100, 0.25)


def sine(frequency: float, amplitude: float = 0.5, phase: float = 0.0) -> np.ndarray:
    return 0.1 + amplitude * np.sin(2 * np.pi * frequency * TIME + phase)


@pytest.mark.parametrize("frequency", [0.1537, 0.2, 0.0713])
def test_amplitude_frequency_and_mean_of_a_sine(frequency: float) -> None:
    found = vibration(sine(frequency), TIME)
    assert found.frequency == pytest.approx(frequency, rel=2e-3)
    assert found.amplitude == pytest.approx(0.5, rel=0.01)
    assert found.mean == pytest.approx(0.1, abs=0.01)


def test_frequency_is_unknown_below_two_periods_and_at_rest() -> None:
    assert vibration(sine(0.015), TIME).frequency is None
    assert vibration(np.full(50, 0.3), TIME[:50]).frequency is None
    assert vibration(np.full(50, 0.3), TIME[:50]).amplitude < 1e-12


def test_phase_error_grows_with_the_difference_of_frequencies() -> None:
    # After 5 periods of 1/0.2, a frequency 8 % higher is 0.4 of a period ahead; 20 %: one period.
    true = sine(0.2)
    assert phase_error(sine(0.216), true, TIME) == pytest.approx(0.4, abs=0.02)
    assert phase_error(sine(0.24), true, TIME) == pytest.approx(1.0, abs=0.05)
    assert phase_error(sine(0.2, 0.1, phase=np.pi / 5), true, TIME) == pytest.approx(0.1, abs=5e-3)
    assert phase_error(true[:80], true[:80], TIME[:80]) is None  # ends after four periods
    assert phase_error(np.full(len(TIME), 0.3), true, TIME) is None  # no motion, no phase


def test_regimes() -> None:
    locked, slow, small = (vibration(s, TIME) for s in (sine(0.2), sine(0.1), sine(0.2, 0.001)))
    assert locked.regime(0.21) == "lock-in"
    assert locked.regime(2.1) == "outside"
    assert slow.regime(0.2) == "outside"
    assert small.regime(0.2) == "at rest"
    assert locked.regime(0.2, diameter=20.0) == "outside"


def test_errors_of_a_prediction() -> None:
    errors = compare_vibrations(sine(0.204, 0.55), sine(0.2), TIME)
    assert errors.amplitude == pytest.approx(0.1, abs=0.01)
    assert errors.frequency == pytest.approx(0.02, abs=3e-3)
    assert errors.phase == pytest.approx(0.1, abs=0.01)
    assert compare_vibrations(sine(0.2), sine(0.2), TIME).rms == 0.0


def test_series_with_gaps_or_unknown_values_are_refused() -> None:
    gap = np.r_[TIME[:40], TIME[60:100]]
    with pytest.raises(ValueError, match="gaps"):
        vibration(np.sin(gap), gap)
    with pytest.raises(ValueError, match="frame 3"):
        vibration(np.where(TIME == TIME[3], np.nan, sine(0.2)), TIME)
    with pytest.raises(ValueError, match="one length"):
        vibration(sine(0.2)[:-1], TIME)
