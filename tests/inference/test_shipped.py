"""Models by name, and the device to run one on."""

from pathlib import Path

import pytest
import torch

import pibert
from pibert.data.readers import open_recordings
from pibert.inference import model_file, read_model, save_model, shipped_models
from pibert.inference.model_file import choose_device
from tests.helpers import refused
from tests.inference.small import NORMALIZER, predictor

SAMPLE = Path(pibert.__file__).parent / "weights" / "cylinder-mr" / "sample.h5"


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
    monkeypatch.setattr(model_file, "FOLDER", folder)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def first_weight(loaded: pibert.Predictor) -> float:
    return next(loaded.model.parameters()).flatten()[0].item()


def test_an_existing_path_wins_over_the_name_of_a_shipped_model(weights: Path) -> None:
    names = ("cavity", "wake-large", "wake-small")
    assert shipped_models() == {name: weights / name for name in names}
    assert first_weight(pibert.load("wake-large", device="auto")) == 1.0
    assert read_model("cavity").card["trained"]["forward"]
    (weights / "cavity").rename(Path("wake-small"))
    assert first_weight(pibert.load("wake-small")) == 2.0
    assert first_weight(pibert.load(weights / "wake-small")) == 0.0


def test_an_unknown_name_is_answered_with_the_known_ones(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("shipped models: cavity, wake-large, wake-small", "did you mean wake-small")
    with refused(*known, error=FileNotFoundError):
        pibert.load("wake-smal")
    monkeypatch.setattr(model_file, "FOLDER", weights / "nothing")
    with refused("found nothing", "shipped models: none", error=FileNotFoundError):
        pibert.load("runs/plasma")


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


@pytest.mark.parametrize(
    ("name", "share"),
    [("cylinder-base", 0.05), ("cylinder-mr", 0.005)],
)
def test_a_shipped_wake_model_steps_the_sample_far_better_than_persistence(
    name: str, share: float
) -> None:
    model = pibert.load(name)
    for flow in open_recordings(SAMPLE):
        states = flow.read()
        found = model.step(states[:-1, None], flow.parameters)[:, 0]
        known = flow.known()[1:, None].expand_as(found)
        error = (found - states[1:])[known].square().mean()
        persistence = (states[:-1] - states[1:])[known].square().mean()
        assert error < share * persistence  # on the test flows it is 0.018 and 0.0015


@pytest.mark.slow
def test_a_model_trained_on_rollouts_keeps_shedding_vortices_for_1000_frames() -> None:
    model = pibert.load("cylinder-mr")
    for flow in open_recordings(SAMPLE):
        states, known = flow.read(), flow.known()[0]
        found = torch.cat(list(model.iterate(states[:1], 999, flow.parameters, known)))
        assert found[..., known].abs().max() < 1.5 * states[..., known].abs().max()
        cross = float(states[:, 1, :, 40:].std(0).mean())
        for part in found[:, 1, :, 40:].split(333):
            assert float(part.std(0).mean()) == pytest.approx(cross, rel=0.2)
