"""The demonstration on wakes so small that they take a second."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pibert.data.format import Reader, write
from pibert.data.generate import change
from pibert.demo import judge, read_wakes, roll_out, run_demo, train
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.models import build_model
from pibert.models.pibert import PIBERT
from pibert.solver.presets import find_preset
from pibert.solver.recipes import Recipe

BODY = torch.zeros(8, 12, dtype=torch.bool)
BODY[3:5, 2:5] = True


def tiny_recipe() -> Recipe:
    settings = {"samples": 6, "group": 6, "frames": 5, "warm_up": 1.0, "speed": 0.15}
    size = {"domain": [8, 6], "upstream": 3.0, "view": [32, 36], "body": [15.5, 12.5, 8.0]}
    return change(find_preset("cylinder"), settings | size)


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


def small_model(spec: FieldSpec) -> PIBERT:
    return build_model("pibert", spec=spec, width=16, depth=1, modes=4)


def test_the_demo_goes_from_simulation_to_picture(tmp_path: Path) -> None:
    wakes: list[float] = []
    steps: list[int] = []
    picture = tmp_path / "new" / "demo.png"
    result = run_demo(
        picture,
        recipe=tiny_recipe(),
        steps=2,
        ahead=2,
        on_wakes=wakes.append,
        on_step=lambda step, loss: steps.append(step),
    )
    assert picture.read_bytes().startswith(b"\x89PNG") and result.picture == picture
    assert wakes[-1] == 6.0 and steps == [1, 2]
    assert len(Reader(next((tmp_path / "new").glob("wakes-*.h5")))) == 6
    assert len(result.model) == len(result.persistence) == 2
    assert result.ratios != pytest.approx((1.0, 1.0), abs=1e-4)


@pytest.mark.usefixtures("drawn")
def test_the_wakes_are_simulated_once(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    seen: list[float] = []
    first = run_demo(tmp_path / "a.png", recipe=recipe, steps=0, ahead=1)
    again = run_demo(tmp_path / "b.png", recipe=recipe, steps=0, ahead=1, on_wakes=seen.append)
    assert seen == [6.0]  # told that all are there, and nothing on the way
    assert again.persistence == first.persistence and again.reynolds == first.reynolds


@pytest.mark.usefixtures("drawn")
def test_the_untrained_model_is_persistence(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo.png", recipe=tiny_recipe(), steps=0, ahead=2)
    assert result.persistence[1] > result.persistence[0] > 0
    assert result.ratios == pytest.approx((1.0, 1.0), abs=1e-4)


def test_persistence_is_judged_in_physical_units_over_the_points_outside_the_body(
    tmp_path: Path, drawn: list[tuple[Tensor, Tensor]]
) -> None:
    write_drifts(tmp_path / "drifts.h5")
    wakes = read_wakes(tmp_path / "drifts.h5")
    (test,) = wakes.split.test
    model = small_model(wakes.spec).eval()
    result = judge(model, wakes, wakes.samples(wakes.split.test, 3), tmp_path / "demo.png")
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


def test_the_wakes_are_parted_and_only_those_that_train_enter_the_statistics(
    tmp_path: Path,
) -> None:
    write_drifts(tmp_path / "drifts.h5", 12)
    wakes = read_wakes(tmp_path / "drifts.h5")
    parts = [
        {segment.trajectory for segment in p}
        for p in (wakes.split.train, wakes.split.valid, wakes.split.test)
    ]
    assert [len(part) for part in parts] == [8, 2, 2] and len(set().union(*parts)) == 12
    training = [t for i, t in enumerate(Reader(tmp_path / "drifts.h5")) if i in parts[0]]
    values = torch.stack([t.read()[:, :2][..., ~BODY] for t in training]).double()
    for channel in (0, 1):
        mean, std = values[:, :, channel].mean(), values[:, :, channel].std(correction=0)
        assert wakes.normalizer.mean[channel] == pytest.approx(mean.item(), abs=1e-5)
        assert wakes.normalizer.std[channel] == pytest.approx(std.item(), rel=1e-5)
    logs = torch.tensor([t.parameters["Re"] for t in training]).double().log10()
    assert wakes.spec.channels == ("u", "v")
    assert wakes.spec.parameters[0].mean == pytest.approx(logs.mean().item())


def test_a_roll_out_feeds_the_model_its_own_frames_with_parameters_and_mask(tmp_path: Path) -> None:
    write_drifts(tmp_path / "drifts.h5")
    wakes = read_wakes(tmp_path / "drifts.h5")
    samples = wakes.samples(wakes.split.test, 3)
    batch = samples.batch([0, 1])

    class Doubling(nn.Module):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            assert torch.equal(parameters, batch.parameters) and torch.equal(mask, batch.mask)
            return 2 * x

    frames = roll_out(Doubling(), batch, 3)
    for lead in (1, 2, 3):
        torch.testing.assert_close(frames[:, lead - 1], 2**lead * batch.x)


def test_training_lowers_the_loss_and_reads_nothing_but_the_training_wakes(
    tmp_path: Path,
) -> None:
    write_drifts(tmp_path / "drifts.h5")
    wakes = read_wakes(tmp_path / "drifts.h5")
    trained = {segment.trajectory for segment in wakes.split.train}
    poisoned = tuple(
        t if index in trained else replace(t, states=torch.full_like(t.read(), torch.nan))
        for index, t in enumerate(wakes.trajectories)
    )
    torch.manual_seed(0)
    model = small_model(wakes.spec)
    losses: list[float] = []
    train(model, replace(wakes, trajectories=poisoned), 60, lambda step, loss: losses.append(loss))
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    assert not model.training


@pytest.mark.parametrize(("steps", "ahead"), [(-1, 1), (1, 0)])
def test_wrong_numbers_are_told_before_anything_is_simulated(
    tmp_path: Path, steps: int, ahead: int
) -> None:
    with pytest.raises(ValueError, match="expected steps of at least 0 and ahead of at least 1"):
        run_demo(tmp_path / "demo.png", recipe=tiny_recipe(), steps=steps, ahead=ahead)
    assert list(tmp_path.iterdir()) == []


def test_more_frames_than_there_are_is_told_before_the_training(tmp_path: Path) -> None:
    def stop(step: int, loss: float) -> None:
        raise AssertionError("trained")

    with pytest.raises(ValueError, match="no window of 10 frames"):
        run_demo(tmp_path / "demo.png", recipe=tiny_recipe(), steps=1, ahead=9, on_step=stop)


@pytest.mark.slow
def test_the_demo_learns_to_step_wakes_it_has_not_seen(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = run_demo(tmp_path / "demo.png")
    assert max(result.ratios) < 0.25
