"""Diagnostics of PDE families: simulated flows satisfy them, broken predictions do not."""

from pathlib import Path

import pytest
import torch

from pibert.data.format import Reader
from pibert.data.generate import change, generate
from pibert.evaluation.measure import Frames
from pibert.evaluation.measures import FamilyDiagnostics, window_measures
from pibert.solver.presets import find_preset

LIMITS = {
    "heat": {"amount_drift": 1e-6, "overshoot": 1e-5},
    "wave": {"dispersion_error": 2e-3},
    "reaction-diffusion": {"negativity": 1e-5},
    "euler": {"mass_drift": 1e-6, "momentum_drift": 1e-6, "energy_drift": 1e-6},
    "turbulence": {"divergence_share": 1e-4, "momentum_drift": 1e-6},
}

SHIFTS = {"heat": 0.3, "reaction-diffusion": -0.3, "turbulence": 0.3}


def simulated(case: str, folder: Path) -> Frames:
    size = {"samples": 1, "frames": 8, "shape": [32, 32]}
    generate(change(find_preset(case), size), folder / f"{case}.h5")
    with Reader(folder / f"{case}.h5") as reader:
        flow = reader[0].load()
    truth = flow.read()
    return Frames(
        prediction=truth,
        truth=truth,
        last=truth,
        known=flow.known(),
        body=None,
        spec=flow.spec,
        parameters=flow.parameters,
    )


@pytest.mark.parametrize("case", LIMITS)
def test_a_simulated_flow_satisfies_its_diagnostics(case: str, tmp_path: Path) -> None:
    frames = simulated(case, tmp_path)
    measure = window_measures(frames.spec, 8)["rollout/family"]
    assert isinstance(measure, FamilyDiagnostics)

    def values(prediction: torch.Tensor) -> dict[tuple[str, str], float]:
        predicted = Frames(**{**vars(frames), "prediction": prediction})
        found = measure.values(measure.terms(predicted).sum(0)).tolist()
        names = [(entry.metric, entry.component) for entry in measure.entries]
        return dict(zip(names, found, strict=True))

    true = values(frames.truth)
    # The last frames are wrong: larger, shifted, mirrored, and at rest.
    wrong = frames.truth.clone()
    wrong[5:] = 1.2 * wrong[4].flip(-1) + SHIFTS.get(case, 0.0) * wrong[4].abs().amax()
    found = values(wrong)
    for metric, limit in LIMITS[case].items():
        assert true[metric, "all"] == true[metric, "data"] < limit
        assert found[metric, "data"] == true[metric, "data"]
        assert found[metric, "all"] > 10 * limit, metric


def test_unknown_points_leave_nothing_to_diagnose(tmp_path: Path) -> None:
    frames = simulated("heat", tmp_path)
    known = frames.known.clone()
    known[3, 2, 2] = False
    measure = FamilyDiagnostics(spec=frames.spec)
    gappy = Frames(**{**vars(frames), "known": known})
    assert measure.values(measure.terms(gappy).sum(0)).isnan().all()
