"""The training commands: settings are shown or refused; runs are made, stopped and taken up."""

import io
import json
import math
import os
import re
import signal
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from pibert import config
from pibert.cli.config import to_toml
from pibert.cli.terminal import is_first_process, showing_progress
from pibert.cli.train import _summarise
from pibert.data.format import write
from pibert.data.generate import change
from pibert.experiments import Experiment, Finished, load_experiment
from pibert.models import build_model
from pibert.progress import TrainingProgress
from pibert.solver.presets import find_preset
from pibert.training.settings import Fitted
from tests.command import refusal, run, well
from tests.data.helpers import make_trajectory

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
TINY = """
[data]
case = "turbulence"
recipe = { samples = 6, frames = 6, shape = [12, 16] }
shares = { train = 0.5, valid = 0.25 }

[model]
name = "pibert"
options = { width = 16, heads = 2, depth = 1, modes = 4, refine_width = 8 }

[training]
epochs = 2
batch_size = 4
learning_rate = 1e-3
"""


def succeed(*arguments: str | Path) -> str:
    return well(*arguments).output


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that takes a second or so."""
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_options_state_what_a_recording_does_not(tmp_path: Path) -> None:
    flow, out = tmp_path / "flow.npz", tmp_path / "run"
    states = np.random.default_rng(0).normal(size=(12, 8, 10))
    np.savez(flow, u=states, v=states[:, ::-1])
    given = ("--dt", "0.5", "--dx", "2", "--dy", "3", "--unit", "mm/s", "--length-unit", "mm")
    short = ("--no-rollout-training", "--set", "training.epochs=1")
    succeed("train", flow, "--out", out, *given, "--family", "none", *short)
    card = json.loads((out / "model.json").read_text())
    assert card["spec"]["dt"] == 0.5 and card["spec"]["family"] is None
    assert (card["spec"]["grid"]["dx"], card["spec"]["grid"]["dy"]) == (0.002, 0.003)
    text = refusal("train", "--config", CONFIGS[0], "--out", out, "--dt", "1")
    assert "--dt" in text and "FLOWS" in text


def test_one_command_trains_on_a_recording(tmp_path: Path) -> None:
    flow, out = tmp_path / "flow.h5", tmp_path / "run"
    write(flow, [make_trajectory(frames=30, states=torch.randn(30, 2, 12, 16))])
    shown = succeed("train", flow, "--out", out, "--set", "training.epochs=1")
    chosen, _, closing = shown.partition("Best epoch 1 of 1")
    for choice in ("pibert-mr", "parameters", "split in time", "1 epoch of 21 samples", "Muon"):
        assert choice in chosen
    assert "0.004" in chosen and "batches of 32" in chosen and "one flow only" in chosen
    assert "at most 2 frames" in chosen
    # Four frames are left for the test split, one of them is the start.
    assert f"pibert evaluate {out} --rollout 3" in closing
    assert f"pibert calibrate {out} --leads 3" in closing and "pibert export" in closing
    scored = succeed("evaluate", out, "--rollout", "3")
    assert "of 3 steps" in scored and "governing equations" not in scored
    long = refusal("evaluate", out, "--rollout", "20")
    assert "--rollout 20" in long and "found at most 4" in long and "--rollout 3" in long
    recorded = json.loads((out / "config.json").read_text())["experiment"]
    assert recorded["model"]["name"] == "pibert-mr"
    assert recorded["training"]["optimizer"] == "muon"
    neither = refusal("train", "--out", tmp_path / "none")
    both = refusal("train", flow, "--config", out, "--out", tmp_path / "none")
    assert "found neither" in neither and "found both" in both
    assert not (tmp_path / "none").exists()


# Settings


def test_toml_round_trip_of_plain_values() -> None:
    plain = {
        "seed": 3,
        "name": 'a "quoted" \\ line\nwith ü',
        "rate": 1e-05,
        "most": math.inf,
        "flag": True,
        "none": None,
        "sizes": [[1, 2], [3]],
        "model": {"options": {"odd key": 1, "dotted.key": [{"a": 1.5, "b": "x"}]}, "empty": {}},
    }
    assert tomllib.loads(to_toml(plain)) == {**plain, "none": "none"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_can_be_built_shown_and_used_again(path: Path, tmp_path: Path) -> None:
    experiment = load_experiment(path)
    model, data = experiment.model, experiment.data
    build_model(model.name, preset=model.preset, **model.options)
    if data.case is not None:
        change(find_preset(data.case, data.preset), data.recipe)
    shown = tmp_path / "shown.toml"
    shown.write_text(succeed("config", "show", "--config", path))
    assert load_experiment(shown) == experiment
    plain = json.loads(succeed("config", "show", "--config", path, "--json"))
    assert config.parse(Experiment, plain) == experiment


def test_without_a_file_the_defaults_are_shown() -> None:
    assert tomllib.loads(succeed("config", "show"))["data"]["case"] == "cylinder"
    shown = tomllib.loads(succeed("config", "show", "--set", "data.path=my flow.h5"))
    assert (shown["data"]["path"], shown["data"]["case"]) == ("my flow.h5", "none")


# Progress


def record(epoch: int, **others: Any) -> dict[str, Any]:
    losses = {"train": {"loss": 0.5}, "valid": {"loss": 0.25}}
    rates = {"seconds": 2.0, "samples_per_second": 24000.0}
    return {"kind": "epoch", "epoch": epoch, **losses, **rates, **others}


def told(progress: TrainingProgress, output: io.StringIO) -> str:
    """What is printed while a run of two stages comes on."""
    with progress:
        progress.simulated(2.5)
        for done in (0, 3):  # pretraining, then a training that is resumed
            progress.start(6, done)
            progress.step(done + 1, 0.125)
            progress.epoch(record(1, best=True))
            progress.say("could not write [this]")
    return output.getvalue()


def test_the_time_left_follows_from_the_speed_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pibert.progress.time.monotonic", lambda: now[0])
    output = io.StringIO()
    with TrainingProgress(Console(file=output, force_terminal=False)) as progress:
        progress.start(1000, 100)  # resumed
        for seconds, done in ((5.0, 105), (20.0, 120), (55.0, 910)):
            now[0] = seconds
            progress.step(done, 0.125)
    first, second = output.getvalue().splitlines()
    assert "15 min" in first and " 6 s" in second


def test_long_work_in_a_log_has_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pibert.progress.time.monotonic", lambda: now[0])
    output = io.StringIO()
    console = Console(file=output, force_terminal=False)
    simulated = "simulated 3.0 of 12 flows"
    with TrainingProgress(console) as progress:
        for seconds, done in ((0.0, 0), (5.0, 1), (15.0, 3)):
            now[0] = seconds
            progress.simulated(done, 12)
    assert output.getvalue().splitlines()[1:] == [f"{simulated}  about 45 s left"]
    with showing_progress(console, 12, "{task.completed:.1f}/{task.total} flows") as update:
        for seconds, done in ((20.0, 1), (25.0, 2), (40.0, 3)):
            now[0] = seconds
            update(done)
    assert output.getvalue().splitlines()[2:] == ["2.0/12 flows  about 50 s left"]


def test_other_processes_are_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    told(TrainingProgress(), io.StringIO())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "4", "LOCAL_RANK": "0"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, True),  # torchrun inside srun
        ({"LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}, False),
    ],
)
def test_the_first_process_is_known(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], first: bool
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() is first


# Runs


def test_a_best_epoch_far_from_the_last_is_reported_as_overfitting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def notes(best: int, epochs: int) -> str:
        fitted = Fitted(
            metrics={"reconstruction": 0.1, "persistence": 0.2, "skill": 0.5},
            best_epoch=best,
            epochs=epochs,
            steps=epochs,
            stopped_early=False,
            resumed_from=None,
        )
        _summarise(Finished(tmp_path, fitted, validated=True, longest_rollout=0))
        return capsys.readouterr().err

    card = {"trained": {"forward": True, "reconstruct": False}}
    monkeypatch.setattr("pibert.inference.load", lambda folder: SimpleNamespace(card=card))
    late = notes(8, 40)
    assert "epoch 8 of 40" in late and "--set training.epochs=8" in late
    assert notes(30, 40) == notes(2, 4) == ""


def test_a_model_no_better_than_persistence_gets_a_note(tiny: Path, tmp_path: Path) -> None:
    """A learning rate of zero leaves persistence as it is."""
    still = ("--set", "training.learning_rate=0", "--set", "training.min_learning_rate=0")
    output = succeed("train", "--config", tiny, "--out", tmp_path / "run", *still)
    assert re.search(r"skill (0|-\S+)\n", output)
    assert "no better than persistence" in output


def test_a_model_in_closed_form_has_no_curves(tiny: Path, tmp_path: Path) -> None:
    dmd = ("--set", "model.name=dmd", "--set", "model.options={rank=2}")
    output = succeed("train", "--config", tiny, "--out", tmp_path / "run", *dmd)
    assert "Fitted in closed form" in output and "model.safetensors" in output
    assert "curves.png" not in output and not (tmp_path / "run" / "curves.png").exists()


@pytest.mark.usefixtures("drawn_curves")
def test_a_run_is_trained_repeated_and_protected(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    output = succeed("train", "--config", tiny, "--out", out)
    assert "Best epoch " in output and f"pibert.load({str(out)!r})" in output
    names = {"config.json", "log.jsonl", "model.safetensors", "model.json", "curves.png"}
    assert names | {"state.safetensors"} <= {entry.name for entry in out.iterdir()}
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [line["kind"] for line in read_log(out)] == ["start", "epoch", "epoch"]
    best = [line["valid"] for line in read_log(out) if line.get("best")][-1]
    assert best["skill"] == pytest.approx(1 - best["reconstruction"] / best["persistence"])
    assert f"skill {best['skill']:.3g}" in output
    card = json.loads((out / "model.json").read_text())
    assert card["metrics"]["skill"] == pytest.approx(best["skill"])
    stored = json.loads((out / "config.json").read_text())
    assert config.parse(Experiment, stored["experiment"]) == load_experiment(tiny)

    before = (out / "model.safetensors").read_bytes(), (out / "log.jsonl").read_bytes()
    for again in (("train", "--config", tiny, "--out", out), ("resume", out)):
        repeated = succeed(*again)
        assert "Best epoch " in repeated and "already finished, after epoch 2" in repeated
    assert before == ((out / "model.safetensors").read_bytes(), (out / "log.jsonl").read_bytes())

    other = ("train", "--config", tiny, "--out", out, "--set", "training.epochs=3")
    assert "training.epochs is 2 there and 3 here" in refusal(*other)
    # A run is a configuration too.
    shown = succeed("config", "show", "--config", out, "--json")
    assert config.parse(Experiment, json.loads(shown)) == load_experiment(tiny)


def test_pretraining_is_a_start_for_training(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "pretrained"
    weights = ("--set", "pretraining_weights.ecp=0", "--set", "pretraining.epochs=1")
    output = succeed("pretrain", "--config", tiny, "--out", out, *weights)
    assert f"--set start={out}" in output and f"pibert fill FILE --model {out}" in output
    further = ("train", "--config", tiny, "--out", tmp_path / "run", "--set", f"start={out}")
    assert "pibert.load" in succeed(*further)


def test_only_a_run_can_be_resumed(tmp_path: Path) -> None:
    assert "no run to resume" in refusal("resume", tmp_path)


def test_resume_after_an_interrupt_gives_identical_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    command = ("train", "--config", tiny, "--out", out)

    def press_keys(self: TrainingProgress, record: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "epoch", press_keys)
        result = run(*command)
    assert result.exit_code == 130, result.output
    assert "run the same command again" in " ".join(result.output.split())
    assert [line["kind"] for line in read_log(out)] == ["start", "epoch"]

    resumed = succeed(*command)
    assert "resumed after step" in resumed and "Best epoch " in resumed
    whole = tmp_path / "whole"
    succeed("train", "--config", tiny, "--out", whole)
    assert (whole / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_a_damaged_model_is_written_again_or_reported(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    succeed("train", "--config", tiny, "--out", out, "--set", "training.learning_rate=1e-4")
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    (out / "model.json").unlink()
    result = run("resume", out)  # written again, or refused where its epoch has passed
    if result.exit_code == 0:
        assert (out / "model.safetensors").read_bytes() == weights
    else:
        assert "put its files back" in result.output
