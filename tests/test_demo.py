"""The demonstration on wakes so small that they take a second."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.format import Reader, write
from pibert.demo import EXPERIMENT, judge, run_demo
from pibert.experiments import Experiment, load_experiment
from pibert.experiments.experiment import ModelConfig
from pibert.experiments.flows import prepare
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.models import build_model
from pibert.predictor import Predictor

BODY = torch.zeros(8, 12, dtype=torch.bool)
BODY[3:5, 2:5] = True


TINY_RECIPE: dict[str, Any] = {
    "samples": 6,
    "group": 6,
    "frames": 5,
    "warm_up": 1.0,
    "speed": 0.15,
    "domain": [8, 6],
    "upstream": 3.0,
    "view": [32, 36],
    "body": [15.5, 12.5, 8.0],
}
CONFIGS = Path(__file__).parents[1] / "configs"


def write_drifts(path: Path, count: int = 6) -> list[float]:
    """Waves that move along x, each with its speed as the Reynolds number; nonsense in a body."""
    grid = Grid((8, 12), 0.5, 0.25, body=BODY)
    spec = FieldSpec(
        channels=("u", "v", "p"),
        parameters=(Parameter(name="Re", scaling="log"),),
        dt=0.1,
        grid=grid,
    )
    x, y = grid.coordinates()
    time = 0.1 * torch.arange(9)
    speeds = [2.0 + index for index in range(count)]
    trajectories = []
    for index, speed in enumerate(speeds):
        phase = x - speed * time[:, None, None]
        states = torch.stack((10 + 2 * torch.sin(phase), torch.cos(phase + y), 1e6 * phase), dim=1)
        states[:, :, BODY] = torch.nan
        trajectories.append(
            Trajectory(
                name=f"drift-{index}", states=states, time=time, spec=spec, parameters={"Re": speed}
            )
        )
    write(path, trajectories)
    return speeds


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Truth and prediction that would be drawn; nothing is, which saves seconds."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def note(path: Path, truth: Tensor, prediction: Tensor, *_: object, **__: object) -> None:
        pairs.append((truth, prediction))

    monkeypatch.setattr("pibert.demo.compare_fields", note)
    return pairs


def tiny_experiment(**data: Any) -> Experiment:
    """A minute's demonstration in a second."""
    return replace(
        EXPERIMENT,
        data=replace(EXPERIMENT.data, **data),
        model=ModelConfig(options={"width": 16, "depth": 1, "modes": 4, "dropout": 0.0}),
        pretraining=None,
        training=replace(EXPERIMENT.training, epochs=1, warmup_epochs=0.0),
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))


def test_the_demonstration_is_that_of_the_configuration_file() -> None:
    assert load_experiment(CONFIGS / "demo.toml") == EXPERIMENT


def test_the_demo_goes_from_simulation_to_picture(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "demo.png"
    experiment = tiny_experiment(recipe=TINY_RECIPE)
    result = run_demo(picture, experiment=experiment, ahead=2)
    assert picture.read_bytes().startswith(b"\x89PNG") and result.picture == picture
    assert len(result.model) == len(result.persistence) == 2
    assert result.ratios != pytest.approx((1.0, 1.0), abs=1e-6)
    assert result.run.parent == picture.parent and (result.run / "model.json").exists()
    before = (result.run / "log.jsonl").read_bytes()
    again = run_demo(picture, experiment=experiment, ahead=2)
    assert (result.run / "log.jsonl").read_bytes() == before  # not trained again
    assert again == result


def test_errors_are_in_physical_units_over_the_points_outside_the_body(
    tmp_path: Path, drawn: list[tuple[Tensor, Tensor]]
) -> None:
    write_drifts(tmp_path / "drifts.h5")
    data = replace(EXPERIMENT.data, case=None, path=str(tmp_path / "drifts.h5"))
    flows = prepare(data)
    (test,) = flows.split.test
    model = build_model("pibert", spec=flows.spec, width=16, depth=1, modes=4)
    predictor = Predictor(model, flows.normalizer)  # untrained: persistence
    result = judge(predictor, flows, tmp_path / "demo.png", 3, tmp_path)
    states = Reader(tmp_path / "drifts.h5")[test.trajectory].read()[:, :2][..., ~BODY]
    for lead in (1, 2, 3):
        # Every start from which three frames follow.
        moved = states[lead : 6 + lead] - states[:6]
        expected = moved.square().mean().sqrt().item()
        assert result.persistence[lead - 1] == pytest.approx(expected, rel=1e-4)
    assert result.model == pytest.approx(result.persistence, rel=1e-4)
    assert result.reynolds == (2.0 + test.trajectory,)
    ((truth, prediction),) = drawn  # of six starts the middle one, three frames later
    torch.testing.assert_close(truth[:, ~BODY], states[6])
    torch.testing.assert_close(prediction[:, ~BODY], states[3])


def test_wrong_numbers_are_told_before_anything_is_simulated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected ahead of at least 1"):
        run_demo(tmp_path / "demo.png", experiment=tiny_experiment(), ahead=0)
    assert list(tmp_path.iterdir()) == []


def test_more_frames_than_there_are_is_told_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no window of 10 frames"):
        run_demo(tmp_path / "demo.png", experiment=tiny_experiment(recipe=TINY_RECIPE), ahead=9)
    assert not list(tmp_path.glob("demo*"))


@pytest.mark.slow
def test_the_demo_learns_to_step_wakes_it_has_not_seen(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo.png")
    assert max(result.ratios) < 0.2
