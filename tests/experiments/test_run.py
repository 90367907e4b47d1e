"""What an experiment hands to the engine, and what it refuses; nothing is trained here."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pibert
from pibert.data.dataset import Samples, Window
from pibert.data.format import write
from pibert.data.normalize import fit_normalizer
from pibert.experiments import Experiment, load_experiment, resume, run
from pibert.experiments.flows import prepare
from pibert.experiments.record import only_one
from pibert.fields import Parameter
from pibert.predictor import save_model
from pibert.remarks import InputWarning
from pibert.training import engine
from pibert.training.settings import Fitted

TINY = """
[data]
case = "turbulence"
recipe = { samples = 8, frames = 6, shape = [12, 16] }
shares = { train = 0.5, valid = 0.25 }
[model]
name = "pibert"
options = { width = 16, heads = 2, depth = 1, modes = 4, refine_width = 8 }
[training]
epochs = 1
batch_size = 4
"""

Calls = list[dict[str, Any]]
Go = Callable[..., Calls]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> Go:
    """Run an experiment with changes; gives what the engine was asked, stage by stage."""
    monkeypatch.setenv("PIBERT_CACHE", str(cache))
    calls: Calls = []

    def fit(
        model: nn.Module, objectives: Any, train: Samples, valid: Any, plan: Any, **others: Any
    ) -> Fitted:
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)  # something was learned
        after = {name: weight.clone() for name, weight in model.state_dict().items()}
        given = {"objectives": objectives, "train": train, "valid": valid, "plan": plan}
        calls.append({"before": before, "after": after, **given, **others})
        others["save_best"](model, {"loss": 1.0, "odd": float("nan")})
        return Fitted(
            metrics={},
            best_epoch=1,
            epochs=1,
            steps=1,
            stopped_early=False,
            resumed_from=None,
        )

    monkeypatch.setattr(engine, "fit", fit)
    (tmp_path / "tiny.toml").write_text(TINY)

    def start(out: str, *changes: str, stage: str = "train") -> Calls:
        calls.clear()
        run(tiny(tmp_path, *changes), tmp_path / out, stage=stage)  # type: ignore[arg-type]
        return list(calls)

    return start


def tiny(folder: Path, *changes: str) -> Experiment:
    return load_experiment(folder / "tiny.toml", changes)


def homes(samples: Samples) -> set[int]:
    return {samples.locate(number)[0] for number in range(len(samples))}


def test_every_part_of_the_data_goes_where_it_belongs(go: Go, tmp_path: Path) -> None:
    (call,) = go("a")
    flows = prepare(tiny(tmp_path).data)
    parts = {
        name: {segment.trajectory for segment in getattr(flows.split, name)}
        for name in ("train", "valid", "test")
    }
    assert homes(call["train"]) == parts["train"] and homes(call["valid"]) == parts["valid"]
    assert not (parts["train"] | parts["valid"]) & parts["test"]
    assert call["train"].normalizer == fit_normalizer(flows.trajectories, flows.split.train)
    first, second = go(
        "b", "data.labelled=0.5", "pretraining.epochs=1", "pretraining_weights.ecp=0"
    )
    assert homes(first["train"]) == parts["train"]  # pretraining needs no labels
    assert len(homes(second["train"])) == 2 and homes(second["train"]) < parts["train"]


def test_training_begins_with_the_pretrained_weights_and_units(go: Go, tmp_path: Path) -> None:
    (pre,) = go("pre", "data.split_seed=3", "pretraining_weights.ecp=0", stage="pretrain")
    (call,) = go("tuned", f"start={tmp_path / 'pre'}", "seed=9")
    assert all(torch.equal(weight, pre["after"][n]) for n, weight in call["before"].items())
    assert call["train"].normalizer == pre["train"].normalizer
    first, second = go("both", "pretraining.epochs=1", "pretraining_weights.ecp=0")
    assert first["folder"] == tmp_path / "both" / "pretraining"
    assert all(torch.equal(weight, first["after"][n]) for n, weight in second["before"].items())


def scaled(folder: Path, factor: float, re: float, family: str | None) -> str:
    """The flows of the experiment, as data of another size, Reynolds number and family."""
    made = []
    for flow in prepare(tiny(folder).data).trajectories:
        spec = replace(flow.spec, family=family, parameters=(Parameter(name="Re", scaling="log"),))
        states = factor * flow.read()
        made.append(replace(flow, states=states, spec=spec, parameters={"Re": re}))
    write(folder / "scaled.h5", made)
    return str(folder / "scaled.h5")


def test_a_scaling_that_does_not_fit_new_data_is_told_and_can_be_replaced(
    go: Go, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def data(path: str) -> tuple[str, ...]:
        return ("data.case=none", "data.recipe={}", f"data.path={path}")

    go("first", *data(scaled(tmp_path, 1.0, 100.0, "incompressible")))
    start = f"start={tmp_path / 'first'}"
    recwarn.clear()
    go("alike", start, *data(scaled(tmp_path, 1.2, 100.0, "incompressible")))
    assert not [note for note in recwarn if "scaling" in str(note.message)]
    large = data(scaled(tmp_path, 6.0, 900.0, "incompressible"))
    with pytest.warns(InputWarning, match="scaling of .* is kept") as told:
        (kept,) = go("kept", start, *large)
    (text,) = (str(note.message) for note in told if "is kept" in str(note.message))
    first = pibert.load(tmp_path / "first").normalizer
    assert f"standard deviation {6 * first.std[0]:.3g}, scaled by" in text
    assert f"{first.std[0]:.3g}; v has" in text and "Re is 900 to 900, and was 100 to 100" in text
    assert "start_scaling = 'data'" in text and kept["train"].normalizer == first
    (own,) = go("own", start, "start_scaling=data", *large)
    assert own["train"].normalizer.std == pytest.approx([6 * s for s in first.std], rel=1e-5)
    assert own["before"]["physics_bias.std"].tolist() == pytest.approx(
        list(own["train"].normalizer.std)
    )
    assert own["before"]["positions"].equal(kept["before"]["positions"])
    assert pibert.load(tmp_path / "own").spec.parameters[0].lowest == 900
    with pytest.raises(ValueError, match="start_scaling = 'data': expected a model to start from"):
        tiny(tmp_path, "start_scaling=data")


def test_a_model_goes_on_with_the_family_that_it_began_with(go: Go, tmp_path: Path) -> None:
    def data(family: str | None) -> tuple[str, ...]:
        path = scaled(tmp_path, 1.0, 100.0, family)
        return ("data.case=none", "data.recipe={}", f"data.path={path}")

    go("stated", *data("incompressible"))
    with pytest.warns(InputWarning, match="state no PDE family; that of .*'incompressible'"):
        go("goes on", f"start={tmp_path / 'stated'}", *data(None))
    assert pibert.load(tmp_path / "goes on").spec.family == "incompressible"
    with pytest.raises(ValueError, match="trained for the family 'incompressible', but these data"):
        go("other", f"start={tmp_path / 'stated'}", *data("incompressible-momentum"))
    with pytest.warns(InputWarning, match="attention bias.*: off, because no PDE family is stated"):
        go("unstated", *data(None))
    with pytest.warns(InputWarning, match="off, because .*unstated has no PDE family"):
        go("without", f"start={tmp_path / 'unstated'}", *data("incompressible"))
    assert pibert.load(tmp_path / "without").spec.family is None
    go("option", "model.options.family=incompressible", *data(None))
    saved = pibert.load(tmp_path / "option")
    older = replace(saved.spec, family=None)  # as models with this option used to be saved
    saved.model.spec = older  # type: ignore[assignment]
    save_model(tmp_path / "older", saved.model, saved.normalizer, trained={"forward": True})
    family = "model.options.family=incompressible"
    go("newer", f"start={tmp_path / 'older'}", family, *data("incompressible"))
    assert pibert.load(tmp_path / "newer").spec.family == "incompressible"


def test_another_time_step_or_spacing_than_that_of_the_start_is_reported(
    go: Go, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def data(*, stretch: float) -> tuple[str, ...]:
        flows = prepare(tiny(tmp_path).data).trajectories
        spec = flows[0].spec
        assert spec.dt is not None
        grid = replace(spec.grid, dx=stretch * spec.grid.dx, dy=stretch * spec.grid.dy)
        spec = replace(spec, dt=stretch * spec.dt, grid=grid)
        path = tmp_path / "stretched.h5"
        write(path, [replace(flow, spec=spec, time=stretch * flow.time) for flow in flows])
        return ("data.case=none", "data.recipe={}", f"data.path={path}")

    go("first")
    start = f"start={tmp_path / 'first'}"
    recwarn.clear()
    go("same", start, *data(stretch=1.001))
    assert not [note for note in recwarn if "another grid spacing" in str(note.message)]
    with pytest.warns(InputWarning, match="another grid spacing or time step") as told:
        go("other", start, *data(stretch=2.0))
    (text,) = (str(note.message) for note in told if "another grid" in str(note.message))
    known = pibert.load(tmp_path / "first").spec
    assert known.dt is not None
    for name, step in (("dx", known.grid.dx), ("dy", known.grid.dy), ("dt", known.dt)):
        assert f"{name} is {2 * step:g}, and was {step:g}" in text


def test_another_model_to_start_from_is_noticed_when_a_run_goes_on(go: Go, tmp_path: Path) -> None:
    go("pre", "pretraining_weights.ecp=0", stage="pretrain")
    go("tuned", f"start={tmp_path / 'pre'}")
    go("tuned", f"start={tmp_path / 'pre'}")
    go("other", "pretraining_weights.ecp=0", "seed=5", stage="pretrain")
    for name in ("model.json", "model.safetensors"):
        (tmp_path / "pre" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(ValueError, match="other data or another start: start is"):
        go("tuned", f"start={tmp_path / 'pre'}")


def test_the_seed_decides_the_weights(go: Go) -> None:
    (a,), (b,), (c,) = (go(out, f"seed={seed}") for out, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert all(torch.equal(weight, b["before"][name]) for name, weight in a["before"].items())
    assert not all(torch.equal(weight, c["before"][name]) for name, weight in a["before"].items())
    scales = a["before"]["physics_bias.scales"]  # measured on the data, not the guess
    assert not torch.equal(scales, pibert.build_model("pibert").state_dict()["physics_bias.scales"])


def test_another_setting_anywhere_is_another_identity(go: Go) -> None:
    changes = (
        "seed=0",
        "data.stride=2",
        "masking.ratio=0.2",
        "negatives.kappa=3",
        "rollout.noise=1",
    )
    assert len({go(str(i), change)[0]["identity"] for i, change in enumerate(changes)}) == 5


def test_a_folder_of_other_settings_or_other_data_is_refused(go: Go, tmp_path: Path) -> None:
    go("a")
    with pytest.raises(ValueError, match=r"masking.ratio is 0.15 there and 0.2 here"):
        go("a", "masking.ratio=0.2")
    with pytest.raises(ValueError, match="stage is 'train' there and 'pretrain' here"):
        go("a", stage="pretrain")
    record = tmp_path / "a" / "config.json"
    record.write_text(record.read_text().replace('"recipe_hash": "', '"recipe_hash": "0'))
    with pytest.raises(ValueError, match="data.recipe_hash is '0"):
        go("a")


def test_a_setting_that_is_new_since_has_its_default(go: Go, tmp_path: Path) -> None:
    go("a")
    record = tmp_path / "a" / "config.json"
    content = json.loads(record.read_text())
    del content["experiment"]["data"]["guard"]
    record.write_text(json.dumps(content))
    go("a")


def test_a_wrong_setting_does_not_spoil_the_folder(go: Go, tmp_path: Path) -> None:
    for wrong, message in (
        ("model.options.widht=3", "did you mean 'width'"),
        ("model.options.modes=60", r"\[model\] and its options"),
        ("rollout.steps=9", "no window of 10 frames"),
    ):
        with pytest.raises(ValueError, match=message):
            go("a", wrong)
        assert not (tmp_path / "a").exists()
    go("a")


def test_a_file_and_a_foreign_folder_are_refused_before_anything_is_simulated(
    go: Go, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        go("file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="not empty and no run"):
        go("full")


def test_the_card_names_the_heads_that_were_trained(go: Go, tmp_path: Path) -> None:
    go("a")
    go("b", "pretraining_weights.ecp=0", stage="pretrain")
    trained = [pibert.load(tmp_path / out).card["trained"] for out in ("a", "b")]
    assert trained[0] == {"forward": True, "reconstruct": False, "consistency": False}
    assert trained[1] == {"forward": False, "reconstruct": True, "consistency": False}
    assert pibert.load(tmp_path / "a").card["metrics"] == {"loss": 1.0}  # NaN has no place there


def test_rollouts_get_their_frames_and_augmentation_its_turn(go: Go) -> None:
    (call,) = go("a", "rollout.steps=2", "augmentation.reflect_x=true")
    assert call["train"].window == Window(history=1, horizon=2)
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            seen.append(x)
            return x

    batch = call["train"].batch(range(6)).reseeded(0, 1)
    call["objectives"](0)(Spy().train(), batch)
    changed = (seen[0] != batch.x).flatten(1).any(1)
    assert bool(changed.any()) and not bool(changed.all())
    assert call["objectives"](0) is call["objectives"](7)  # recorded once


def test_a_schedule_without_supervision_monitors_the_loss(go: Go) -> None:
    (call,) = go("a", "weights.supervised=0", "weights.mpp=1")
    assert call["plan"].monitor == "loss"
    (call,) = go("b")
    assert call["plan"].monitor == "reconstruction"


def test_pretraining_has_the_papers_epochs_unless_told(go: Go, tmp_path: Path) -> None:
    (call,) = go("a", "pretraining_weights.ecp=0", stage="pretrain")
    assert call["plan"].epochs == 50
    assert tiny(tmp_path, "pretraining.learning_rate=1e-3").pretraining.epochs == 50  # type: ignore[union-attr]
    assert json.loads((tmp_path / "a" / "config.json").read_text())["schedule"]["epochs"] == 50


def test_a_run_is_resumed_from_anywhere(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go("pre", "pretraining_weights.ecp=0", stage="pretrain")
    go("tuned", "start=pre")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume("../tuned").folder == tmp_path / "tuned"


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run to resume"):
        resume(tmp_path)
    (tmp_path / "config.json").write_text('{"experiment": {}}')
    with pytest.raises(ValueError, match="not the record of a run"):
        resume(tmp_path)


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(ValueError, match="another process"):
        with only_one(tmp_path):
            pass
