"""Models by name, and the device to run one on."""

import subprocess
from pathlib import Path

import pytest
import torch

import pibert
from pibert.data.sources import open_recordings
from pibert.predictor import read_model, save_model, shipped, shipped_models
from pibert.predictor.shipped import choose_device
from tests.predictor.small import NORMALIZER, predictor


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped models, and another one to work in."""
    folder = tmp_path / "package" / "weights"
    for number, name in enumerate(("wake-small", "wake-large", "cavity")):
        model = predictor().model
        with torch.no_grad():
            next(model.parameters()).fill_(float(number))
        save_model(folder / name, model, NORMALIZER, trained={"forward": True})
    (folder / "unfinished").mkdir()
    (folder / "README.md").write_text("what they are")
    monkeypatch.setattr(shipped, "FOLDER", folder)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def first_weight(loaded: pibert.Predictor) -> float:
    return next(loaded.model.parameters()).flatten()[0].item()


def test_a_shipped_model_is_loaded_by_its_name(weights: Path) -> None:
    assert shipped_models() == {
        name: weights / name for name in ("cavity", "wake-large", "wake-small")
    }
    assert first_weight(pibert.load("wake-large")) == 1.0
    assert read_model("cavity").card["trained"]["forward"]


def test_a_path_that_exists_wins_over_a_name(weights: Path) -> None:
    (weights / "cavity").rename(Path("wake-small"))
    assert first_weight(pibert.load("wake-small")) == 2.0
    assert first_weight(pibert.load(weights / "wake-small")) == 0.0


def test_an_unknown_name_is_answered_with_the_known_ones(weights: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        pibert.load("wake-smal")
    text = str(caught.value)
    assert "did you mean wake-small" in text
    assert "shipped models: cavity, wake-large, wake-small" in text
    with pytest.raises(FileNotFoundError, match="found nothing") as caught:
        pibert.load("runs/plasma")
    assert "did you mean" not in str(caught.value)


def test_a_package_without_weights_ships_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "nothing")
    assert shipped_models() == {}
    with pytest.raises(FileNotFoundError, match="shipped models: none"):
        pibert.load("wake")


def test_weights_in_the_package_are_not_ignored() -> None:
    """A build leaves out what git ignores."""
    root = Path(pibert.__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    names = [
        f"pibert/weights/x/{name}" for name in ("model.safetensors", "model.json", "README.md")
    ]
    found = subprocess.run(
        ["git", "check-ignore", *names], cwd=root, capture_output=True, text=True
    )
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_the_best_device(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto") == torch.device(expected)
    assert choose_device(torch.device("cpu")) == torch.device("cpu")
    if not cuda:
        with pytest.raises(ValueError, match=r"of this machine \(cpu.*found 'cuda:1'"):
            choose_device("cuda:1")
    with pytest.raises(ValueError, match="'auto', found 'gpu'"):
        choose_device("gpu")


def test_a_model_is_loaded_and_moved_with_auto(weights: Path) -> None:
    loaded = pibert.load("cavity", device="auto")
    assert loaded.device.type == choose_device("auto").type
    assert loaded.to("auto") is loaded


def test_the_shipped_wake_model_steps_its_sample_far_better_than_persistence() -> None:
    folder = shipped_models()["cylinder-base"]
    model = pibert.load("cylinder-base")
    for flow in open_recordings(folder / "sample.h5"):
        states = flow.read()
        found = model.step(states[:-1, None], flow.parameters)[:, 0]
        known = flow.known()[1:, None].expand_as(found)
        error = (found - states[1:])[known].square().mean()
        persistence = (states[:-1] - states[1:])[known].square().mean()
        assert error < 0.05 * persistence  # its skill on the test part is 0.98


def test_the_shipped_weights_have_a_readme_and_their_scores() -> None:
    for name, folder in shipped_models().items():
        assert (folder / "README.md").read_text().startswith(f"# {name}\n")
        assert pibert.load(name).card["metrics"]["test_nmse"] > 0
