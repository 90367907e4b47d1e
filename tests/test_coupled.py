"""Flow and structure together, from simulated data to files."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pibert
from pibert import config
from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Comparison
from pibert.comparison.results import gather
from pibert.data import generate as generation
from pibert.data.dataset import Samples, Window
from pibert.data.format import write
from pibert.data.readers import open_recordings
from pibert.data.resample import represent
from pibert.evaluation.scores import read_scores
from pibert.evaluation.structure import displacement_intervals, score_structure
from pibert.experiments import Experiment, run
from pibert.experiments.assembly import assemble
from pibert.experiments.evaluation import evaluate
from pibert.experiments.flows import prepare
from pibert.experiments.held_out import flows_of_run
from pibert.fields import FieldSpec, Grid, MovingBody, Normalizer, Trajectory
from pibert.inference import Predictor, load, load_calibrated
from pibert.inference.recording import fit_recording, units_of
from pibert.inference.stream import RolloutDiverged
from pibert.models import build_model
from pibert.models.stepper import Stepper, StepperConfig
from pibert.notes import collecting
from pibert.serve.models import answer_of
from pibert.serve.recordings import fit_to_models
from pibert.solver.presets import find_preset
from tests.command import well

STATE = ("displacement", "velocity", "lift", "drag")
CHANNELS = ("u", "v", "p", *STATE)


@pytest.fixture(scope="module")
def wakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four short flows of a cylinder on a spring."""
    path = tmp_path_factory.mktemp("coupled") / "wakes.h5"
    changes = {"samples": 4, "group": 4, "frames": 40, "warm_up": 30.0, "domain": [14.0, 8.0]}
    changes |= {"upstream": 4.0, "view": [20, 28], "body": [9.5, 9.0, 6.0]}
    changes |= {"reynolds": [80.0, 92.0], "mass_ratios": [2.0, 8.0], "reduced_velocity": 4.1}
    generation.generate(generation.change(find_preset("tandem", "coupled-demo"), changes), path)
    return path


@pytest.fixture(scope="module")
def trained(wakes: Path) -> Path:
    """A small model of them."""
    folder = wakes.parent / "run"
    settings: dict[str, Any] = {
        "data": {"path": str(wakes), "channels": list(CHANNELS)},
        "model": {"name": "pibert-mr", "preset": "small"},
        "training": {"epochs": 6, "batch_size": 8, "warmup_epochs": 0.5},
    }
    settings["data"]["shares"] = {"train": 0.5, "valid": 0.0, "calibration": 0.25}
    settings["model"]["options"] = {"width": 8, "local_width": 16, "token_width": 16, "cycles": 1}
    run(config.parse(Experiment, settings), folder)
    return folder


def test_series_become_uniform_channels(wakes: Path) -> None:
    flow = open_recordings(wakes)[0]
    assert flow.spec.bodies[0].radius == 0.5
    view = represent(flow, stride=2, channels=("v", "lift", "displacement"))
    assert view.spec.state == ("lift", "displacement")
    fields = view.read(slice(3, 6), [2, 0])
    assert torch.equal(fields[:, 1], flow.read(slice(6, 12, 2))[:, 1])
    wanted = flow.series["displacement"][6:12:2].to(fields)
    assert torch.equal(fields[:, 0], wanted[:, None, None].expand_as(fields[:, 0]))
    # The mask of the simulation is that of the circle at the displacement.
    body = flow.spec.bodies[0].inside(flow.spec.grid, flow.series["displacement"])
    assert torch.equal(~body, flow.known())


def test_training_beats_persistence_on_the_state(trained: Path, wakes: Path) -> None:
    scores = evaluate(trained, flows_of_run(trained))
    skill, rmse = (dict(scores[metric]) for metric in ("skill", "rmse"))
    assert (skill["displacement"] or 0.0) > 0.3
    assert (skill["all"] or 0.0) > 0.0
    # The state is not part of all: the error of all is that of u, v and p alone.
    fields = [(rmse[name] or 0.0) ** 2 for name in ("u", "v", "p")]
    assert rmse["all"] == pytest.approx((sum(fields) / 3) ** 0.5, rel=1e-6)
    (row,) = scores.card["structure"]
    assert row["frames"] == 39
    assert row["true"]["amplitude"] > 0


@pytest.mark.slow
def test_a_comparison_scores_the_wake_oscillator_once(wakes: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": {"vibration": {"path": str(wakes), "channels": list(CHANNELS)}},
        "candidates": {name: {"model": {"name": name}} for name in ("dmd", "persistence")},
        "rollout": {"steps": 0},
    }
    settings["data"]["vibration"]["shares"] = {"train": 0.5, "valid": 0.25}
    plan = config.parse(Comparison, settings)
    assert carry_out(plan, tmp_path) == {}
    found = gather(plan, tmp_path, {})["data"]["vibration"]["wake_oscillator"]
    assert found["coefficients"]["strouhal"] > 0
    (row,) = found["rows"]
    (mine,) = read_scores(tmp_path / "runs" / "vibration" / "dmd-0").card["structure"]
    assert row["flow"] == mine["flow"]
    (stored,) = tmp_path.glob("runs/vibration/*.json")
    before = stored.stat().st_mtime_ns
    assert carry_out(plan, tmp_path) == {}
    assert stored.stat().st_mtime_ns == before


def test_training_notes_a_motion_that_is_not_that_of_the_spring(
    wakes: Path, tmp_path: Path
) -> None:
    wrong = [
        replace(flow, series={**flow.series, "lift": 50 * flow.series["lift"]})
        for flow in open_recordings(wakes)
    ]
    write(tmp_path / "wrong.h5", wrong)
    for path, notes in ((wakes, 0), (tmp_path / "wrong.h5", 1)):
        data = {"path": str(path), "channels": list(CHANNELS), "shares": {"valid": 0.0}}
        experiment = config.parse(Experiment, {"data": data, "model": {"name": "unet"}})
        with collecting() as found:
            assemble(experiment, prepare(experiment.data), "train", None)
        assert [note.code for note in found].count("wrong-motion") == notes


def test_rollout_writes_state_and_body_of_every_frame(trained: Path, wakes: Path) -> None:
    out = wakes.parent
    files = [out / name for name in ("a.h5", "a.nc", "a.csv", "a.png")]
    well("calibrate", trained, "--leads", 4, "--independent", "windows")
    options = [option for file in files for option in ("--out", file)]
    words = ["rollout", wakes, "--model", trained, "--level", 0.8, "--steps", 4, *options]
    state = json.loads(well(*words, "--json").stdout)["state"]
    assert 0 < state["displacement"]["error"] < 1
    assert 0 <= state["displacement"]["coverage"] <= 1
    assert files[3].stat().st_size > 0
    flow = open_recordings(files[0])[0]
    assert set(flow.series) == {n + end for n in STATE for end in ("", "_low", "_high")}
    place = flow.series["displacement"]
    assert bool((flow.series["displacement_low"] < place).all())
    assert bool((place < flow.series["displacement_high"]).all())
    inside = flow.spec.bodies[0].inside(flow.spec.grid, place.float())
    assert torch.equal(inside, flow.body.read(slice(None)))  # type: ignore[union-attr]
    assert torch.equal(flow.known(), ~inside)
    with files[2].open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["displacement"]) for row in rows] == pytest.approx(place.tolist(), rel=1e-6)
    other = open_recordings(files[1])[0]
    assert torch.equal(other.known(), ~inside)


def test_intervals_of_the_state_do_not_vary_in_space(trained: Path, wakes: Path) -> None:
    calibrated = load_calibrated(trained)
    recording = fit_recording(open_recordings(wakes)[3], calibrated.predictor.spec, 1)
    fields, known = recording.windows([5])
    found = calibrated.rollout(fields, 3, recording.parameters, known, level=0.8)
    width = (found.intervals.high - found.intervals.low)[0, :, 3:]
    assert bool((width > 0).all())
    torch.testing.assert_close(width, width[..., :1, :1].expand_as(width))


def test_displacements_have_intervals_up_to_the_calibrated_lead_time(trained: Path) -> None:
    calibrated, flows = load_calibrated(trained), flows_of_run(trained)
    samples = flows.samples("test", Window())
    (row,), arrays = score_structure(calibrated.predictor, samples)
    ends = displacement_intervals(calibrated, samples)
    leads = calibrated.calibration.leads
    low, high = ends["0/low"], ends["0/high"]
    assert len(low) == row["frames"] > leads
    centre = 0.5 * (low + high)[:leads]
    torch.testing.assert_close(centre, arrays["0/predicted"][:leads].to(centre))
    assert bool((low < high)[:leads].all()) and bool(low[leads:].isnan().all())


def test_the_server_offers_recordings_with_the_state(trained: Path, wakes: Path) -> None:
    spec, flow = load(trained).spec, open_recordings(wakes)[0]
    offered, _ = fit_to_models(flow, [units_of(spec)])
    assert set(spec.channels) <= set(offered.spec.channels)
    without, _ = fit_to_models(flow, [units_of(spec.of_fields)])
    assert without.spec.channels == ("u", "v", "p")


def test_input_that_the_model_cannot_use_is_refused(trained: Path, wakes: Path) -> None:
    predictor, flow = load(trained), open_recordings(wakes)[0]
    without = replace(flow, series={"lift": flow.series["lift"]})
    with pytest.raises(ValueError, match="displacement"):
        fit_recording(without, predictor.spec, 1)
    moved = replace(flow.spec.grid, origin=(0.0, 0.0))
    with pytest.raises(ValueError, match="grid"):
        fit_recording(replace(flow, spec=replace(flow.spec, grid=moved)), predictor.spec, 1)
    bad = flow.series["lift"].clone()
    bad[3] = torch.nan
    with pytest.raises(ValueError, match="lift"):
        represent(replace(flow, series={"lift": bad}), channels=("u", "lift"))
    recording = fit_recording(flow, predictor.spec, 1, parameters={"mass_ratio": 100.0})
    fields, known = recording.windows([5])
    found = predictor.predict(fields, 1, recording.parameters, known)
    assert [n.subject for n in found.notes if n.code == "far-parameter"] == ["mass_ratio"]


class Oscillator(Stepper):
    """Turns the last two channels by an angle and keeps the others: exact dynamics."""

    turn, growth = 0.4, 1.0

    def forward(self, x: Tensor, parameters: Tensor | None = None, mask: Any = None) -> Tensor:
        x = self.prepared(x, parameters, mask)
        c, s = np.cos(self.turn), np.sin(self.turn)
        y, w = x[:, 1:2], x[:, 2:3]
        turned = (self.growth * (c * y + s * w), self.growth * (c * w - s * y))
        return self.uniform_state(torch.cat((x[:, :1] + 1.0, *turned), 1))


def exact(growth: float = 1.0) -> tuple[Predictor, MovingBody, Grid, Tensor, Tensor]:
    """A predictor with exact dynamics, its body and grid, a first frame and its known points."""
    grid = Grid((16, 24), dx=0.25, dy=0.25, origin=(-2.0, -1.875))
    body = MovingBody(radius=0.5, displacement="y", unit=2.0)
    spec = FieldSpec(channels=("u", "y", "w"), state=("y", "w"), grid=grid, bodies=(body,))
    model = Oscillator(StepperConfig(), spec)
    model.growth = growth
    frame = torch.zeros(1, 1, 3, *grid.shape)
    frame[:, :, 1] = 0.3
    predictor = Predictor(model, Normalizer((0.0, 0.0, 0.0), (1.0, 0.5, 0.5)))
    return predictor, body, grid, frame, ~body.inside(grid, torch.tensor([0.3]))


def test_exact_dynamics_give_the_analytic_displacement_and_mask() -> None:
    predictor, body, grid, frame, known = exact()
    found = predictor.predict(torch.where(known[:, None, None], frame, torch.nan), 20, mask=known)
    wanted = 0.3 * torch.cos(0.4 * torch.arange(1, 21))
    torch.testing.assert_close(found.fields[0, :, 1, 0, 0], wanted, atol=1e-5, rtol=1e-4)
    assert found.known is not None
    assert torch.equal(found.known[0], ~body.inside(grid, found.fields[0, :, 1, 0, 0]))
    # Points that the body uncovers take the prediction: they count on from there.
    last = found.fields[0, -1, 0]
    assert float(last[known[0]].max()) == 20.0
    assert bool((last[found.known[0, -1]] >= 1.0).all())


def test_the_server_answers_where_the_bodies_are() -> None:
    predictor, _, _, frame, known = exact()
    frames, mask = frame.numpy(), known.numpy()
    found = predictor.predict(frames, 4, mask=mask)
    answer = answer_of(found, True)
    assert found.known is not None
    assert (answer.arrays["known"] == found.known.numpy()).all()
    one = predictor.predict(frames[0], 4, mask=mask[0])
    assert answer_of(one, True).arrays["known"].shape == (4, *known.shape[1:])


def test_a_body_that_leaves_the_domain_keeps_the_frames_before() -> None:
    predictor, body, grid, frame, known = exact(growth=1.3)
    with pytest.raises(RolloutDiverged, match="leaves the domain") as caught:
        predictor.rollout(frame, 20, mask=known)
    kept = caught.value.prediction
    assert kept is not None
    assert 3 < kept.fields.shape[1] < 20
    assert not bool(body.is_outside(grid, kept.fields[0, :, 1, 0, 0]).any())
    with pytest.raises(ValueError, match="inside the domain"):
        predictor.rollout(frame + 5.0, 1, mask=known)


def test_scores_of_exact_dynamics_are_perfect() -> None:
    predictor, body, grid, _, _ = exact()
    time = torch.arange(120, dtype=torch.float64)
    moved = 0.3 * torch.cos(0.4 * time)
    flow = Trajectory(
        name="exact",
        states=torch.arange(120.0)[:, None, None, None].expand(120, 1, *grid.shape),
        time=time,
        spec=FieldSpec(channels=("u",), grid=grid, dt=1.0, bodies=(body,)),
        body=body.inside(grid, moved),
        series={"y": moved, "w": -0.3 * torch.sin(0.4 * time)},
    )
    view = represent(flow, channels=("u", "y", "w"))
    samples = Samples([view], window=Window(), normalizer=predictor.normalizer)
    (row,), arrays = score_structure(predictor, samples)
    assert row["errors"]["amplitude"] < 1e-4
    assert row["errors"]["frequency"] < 1e-4
    assert row["errors"]["phase"] < 1e-4
    assert row["predicted"]["frequency"] == pytest.approx(0.4 / (2 * np.pi), rel=2e-3)
    assert len(arrays["0/predicted"]) == 119


def test_a_flow_and_its_body_are_rolled_out_in_python(trained: Path, wakes: Path) -> None:
    model, flow = pibert.load(trained), pibert.read(wakes)[3]
    ahead = model.rollout(flow, 6, start=2)
    assert tuple(ahead.fields.shape) == (6, 3, 20, 28) and set(ahead.state) == {*STATE}
    true = flow.series["displacement"][3:9].double()
    error = ahead.state["displacement"].double() - true
    expected = error.square().mean().sqrt() / true.std(correction=0)
    assert f"displacement {float(expected):.3g}" in repr(ahead)


@pytest.mark.parametrize("name", ["pibert-mr", "pibert", "fno2d", "unet", "persistence"])
def test_models_predict_a_uniform_state(name: str) -> None:
    grid = Grid((32, 32), dx=0.25, dy=0.25)
    spec = FieldSpec(channels=("u", "v", "y"), state=("y",), grid=grid, family="incompressible")
    torch.manual_seed(0)
    model = build_model(name, spec=spec).eval()
    for parameter in model.parameters():  # not persistence any more
        parameter.data += 0.02 * torch.randn_like(parameter)
    x, mask = torch.randn(2, 3, 32, 32), torch.ones(2, 32, 32, dtype=torch.bool)
    mask[:, 4:8, 6:12] = False
    x[:, 2] = torch.tensor([0.3, -0.7])[:, None, None]
    y = model(x, mask=mask)
    torch.testing.assert_close(y[:, 2], y[:, 2, :1, :1].expand_as(y[:, 2]))
    # The state is read at all points, also where it was hidden.
    hidden = torch.where(mask[:, None], x, 0.0)
    torch.testing.assert_close(model(hidden, mask=mask), y, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_exported_model_agrees(trained: Path, tmp_path: Path) -> None:
    # In a process of its own: checks of types at run time cannot be traced. The command compares
    # the exported model with the original.
    words = ["export", trained, "--to", "onnx", "--out", tmp_path / "model.onnx"]
    subprocess.run([sys.executable, "-m", "pibert", *map(str, words)], check=True)
    assert (tmp_path / "model.onnx").exists()
