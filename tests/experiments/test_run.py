"""What an experiment hands to the engine, and what it refuses; nothing is trained here."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pibert
from pibert.data.dataset import Samples
from pibert.data.format import write
from pibert.data.normalize import fit_normalizer
from pibert.experiments import Experiment, load_experiment, resume, run
from pibert.experiments.flows import prepare
from pibert.experiments.run_folder import only_one, unfinished
from pibert.fields import Parameter, Trajectory
from pibert.inference import save_model
from pibert.models import build_model
from pibert.notes import InputWarning
from pibert.training import engine
from pibert.training.settings import Fitted
from tests.helpers import assert_close, refused

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


def test_splits_are_used_for_their_purpose_alone(go: Go, tmp_path: Path) -> None:
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


def test_dmd_is_fitted_once_to_labelled_flows_and_kept_with_the_weights(
    go: Go, tmp_path: Path
) -> None:
    unet = ("model.name=unet", "model.options={width=4, dmd_modes=8}", "data.labelled=0.5")
    (half,) = go("half", *unet)
    skip = build_model("unet", spec=prepare(tiny(tmp_path).data).spec, width=4, dmd_modes=8)
    samples, valid = half["train"], half["valid"]
    batches = [[part.batch(range(len(part)))] for part in (samples, valid)]
    skip.dmd_skip.fit(batches[0], samples.normalizer, batches[1])
    fitted = {name: own for name, own in half["before"].items() if "dmd_skip" in name}
    for name in ("dmd_skip.dmd.mean", "dmd_skip.scale"):
        assert_close(fitted[name], skip.state_dict()[name], rtol=1e-3)
    start = f"start={tmp_path / 'half'}"
    (further,) = go("further", start, *unet[:2])
    assert all(further["before"][name].equal(own) for name, own in fitted.items())
    with refused("(", "dmd_modes", "same grid"):
        go("large", start, *unet[:2], "data.recipe.shape=[16,16]")


def test_models_that_correct_dmd_refuse_augmentation(tmp_path: Path, go: Go) -> None:
    unet = ("model.name=unet", "model.options={width=4, dmd_modes=8}")
    with refused("dmd_modes", "reflect_x", "--set augmentation.reflect_x=false"):
        go("turned", *unet, "augmentation.reflect_x=true")


def stored(folder: Path, change: Callable[[Trajectory], Trajectory]) -> tuple[str, ...]:
    """The flows of the experiment, changed, as data in a file."""
    path = folder / "changed.h5"
    write(path, [change(flow) for flow in prepare(tiny(folder).data).trajectories])
    return ("data.case=none", "data.recipe={}", f"data.path={path}")


def scaled(factor: float, re: float) -> Callable[[Trajectory], Trajectory]:
    parameters = (Parameter(name="Re", scaling="log"),)
    return lambda flow: replace(
        flow,
        states=factor * flow.read(),
        spec=replace(flow.spec, parameters=parameters),
        parameters={"Re": re},
    )


def of_family(family: str | None) -> Callable[[Trajectory], Trajectory]:
    return lambda flow: replace(flow, spec=replace(flow.spec, family=family))


def test_a_scaling_that_does_not_fit_new_data_is_reported_and_can_be_replaced(
    go: Go, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    go("first", *stored(tmp_path, scaled(1.0, 100.0)))
    start, first = f"start={tmp_path / 'first'}", pibert.load(tmp_path / "first").normalizer
    recwarn.clear()
    go("alike", start, *stored(tmp_path, scaled(1.2, 100.0)))
    assert not [note for note in recwarn if "scaling" in str(note.message)]
    large = stored(tmp_path, scaled(6.0, 900.0))
    with pytest.warns(InputWarning, match=rf"is kept.*deviation {6 * first.std[0]:.3g}.*900 to"):
        (kept,) = go("kept", start, *large)
    assert kept["train"].normalizer == first
    (own,) = go("own", start, "start_scaling=data", *large)
    std = own["train"].normalizer.std
    assert std == pytest.approx([6 * s for s in first.std], rel=1e-5)
    assert own["before"]["physics_bias.std"].tolist() == pytest.approx(list(std))
    assert own["before"]["positions"].equal(kept["before"]["positions"])
    assert pibert.load(tmp_path / "own").spec.parameters[0].lowest == 900
    with refused("start_scaling = 'data'", "a model to start from"):
        tiny(tmp_path, "start_scaling=data")


def test_a_model_keeps_its_family_when_trained_further(go: Go, tmp_path: Path) -> None:
    go("stated", *stored(tmp_path, of_family("incompressible")))
    with pytest.warns(InputWarning, match="no PDE family; that of .*'incompressible'"):
        go("goes on", f"start={tmp_path / 'stated'}", *stored(tmp_path, of_family(None)))
    assert pibert.load(tmp_path / "goes on").spec.family == "incompressible"
    other = stored(tmp_path, of_family("incompressible-momentum"))
    with refused("trained for the family 'incompressible'"):
        go("other", f"start={tmp_path / 'stated'}", *other)
    with pytest.warns(InputWarning, match="attention bias.*no PDE family"):
        go("unstated", *stored(tmp_path, of_family(None)))
    stated = stored(tmp_path, of_family("incompressible"))
    with pytest.warns(InputWarning, match="unstated has no PDE family"):
        go("without", f"start={tmp_path / 'unstated'}", *stated)
    assert pibert.load(tmp_path / "without").spec.family is None
    family = "model.options.family=incompressible"
    go("option", family, *stored(tmp_path, of_family(None)))
    saved = pibert.load(tmp_path / "option")
    # As models with this option used to be saved.
    saved.model.spec = replace(saved.spec, family=None)  # type: ignore[assignment]
    save_model(tmp_path / "older", saved.model, saved.normalizer, trained={"forward": True})
    stated = stored(tmp_path, of_family("incompressible"))
    go("newer", f"start={tmp_path / 'older'}", family, *stated)
    assert pibert.load(tmp_path / "newer").spec.family == "incompressible"


def test_resuming_with_another_start_is_refused(go: Go, tmp_path: Path) -> None:
    go("pre", "pretraining_weights.ecp=0", stage="pretrain")
    go("tuned", f"start={tmp_path / 'pre'}")
    go("tuned", f"start={tmp_path / 'pre'}")
    go("other", "pretraining_weights.ecp=0", "seed=5", stage="pretrain")
    for name in ("model.json", "model.safetensors"):
        (tmp_path / "pre" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with refused("another start", "start is"):
        go("tuned", f"start={tmp_path / 'pre'}")


def test_a_folder_of_other_settings_or_other_data_is_refused(go: Go, tmp_path: Path) -> None:
    go("a")
    with refused("masking.ratio is 0.15 there and 0.2 here"):
        go("a", "masking.ratio=0.2")
    with refused("stage is 'train' there and 'pretrain' here"):
        go("a", stage="pretrain")
    record = tmp_path / "a" / "config.json"
    content = json.loads(record.read_text())
    del content["experiment"]["data"]["guard"]  # a setting that is new since
    record.write_text(json.dumps(content))
    go("a")
    record.write_text(record.read_text().replace('"recipe_hash": "', '"recipe_hash": "0'))
    with refused("data.recipe_hash is '0"):
        go("a")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("model.options.widht=3", "did you mean 'width'"),
        ("model.options.modes=60", "[model] and its options"),
        ("rollout.steps=9", "no window of 10 frames"),
    ],
)
def test_a_wrong_setting_does_not_spoil_the_folder(
    go: Go, tmp_path: Path, wrong: str, named: str
) -> None:
    with refused(named):
        go("a", wrong)
    assert not (tmp_path / "a").exists()


def test_a_file_and_a_foreign_folder_are_refused_before_anything_is_simulated(
    go: Go, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for out, named in (("file", "is a file"), ("full", "not a run folder")):
        with refused(named, error=FileExistsError):
            go(out)


def test_a_run_is_resumed_from_anywhere(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go("pre", "pretraining_weights.ecp=0", stage="pretrain")
    go("tuned", "start=pre")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume("../tuned").folder == tmp_path / "tuned"


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(ValueError, match="another process"):
        with only_one(tmp_path):
            pass


# Files of a run


def made(folder: Path, epochs: int, best: int, valid: Any, **schedule: Any) -> Path:
    facts = {"epochs": 40, "patience": None, "validate_every": 1, **schedule}
    record = {"experiment": {}, "stage": "train", "schedule": facts}
    (folder / "config.json").write_text(json.dumps(record))
    lines: list[dict[str, Any]] = [{"kind": "start"}]
    for epoch in range(1, epochs + 1):
        lines.append({"kind": "epoch", "epoch": epoch, "best_epoch": best, "valid": valid})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


VALID = {"loss": 1.0}


@pytest.mark.parametrize(
    ("epochs", "best", "valid", "schedule", "finished"),
    [
        (40, 32, VALID, {}, True),
        (32, 22, VALID, {"patience": 10}, True),  # stopped early, as planned
        (32, 22, VALID, {}, False),
        (32, 23, VALID, {"patience": 10}, False),
        (32, 1, None, {"patience": 10}, False),  # nothing is validated, so nothing stops it
    ],
)
def test_only_a_stopped_run_gets_a_note_on_how_to_resume_it(
    tmp_path: Path, epochs: int, best: int, valid: Any, schedule: dict[str, Any], finished: bool
):
    assert unfinished(tmp_path) is None
    note = unfinished(made(tmp_path, epochs, best, valid, **schedule))
    if finished:
        assert note is None
    else:
        assert note is not None and "32 of 40" in note and f"pibert resume {tmp_path}" in note
    (tmp_path / "log.jsonl").unlink()
    assert unfinished(tmp_path) is None
