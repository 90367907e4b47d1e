"""The short Python interface: arrays to a fitted model and back."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import pibert
from pibert.api.fitting import Ranking
from pibert.api.model import Forecast
from pibert.inference import Predictor
from pibert.notes import in_python
from pibert.training import engine
from tests.helpers import TINY_OPTIONS, assert_close, refused, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::pibert.notes.InputWarning")

ROOT = Path(pibert.__file__).parents[1]
TINY = {"model.options": dict(TINY_OPTIONS["pibert-mr"])}
UNITS: dict[str, Any] = {"unit": "m/s", "length_unit": "m", "time_unit": "s", "family": "none"}
DX, DY, DT = 0.1, 0.2, 0.02


def wave(frames: int, speed: float = 1.0) -> np.ndarray:
    """A wave that is convected, (time, channel, y, x), free of divergence."""
    y, x = np.meshgrid(DY * np.arange(8), DX * np.arange(12), indexing="ij")
    angle = 4 * x + 2 * y - 4 * speed * DT * np.arange(frames)[:, None, None]
    return np.stack((speed + 0.4 * np.cos(angle), -0.8 * np.cos(angle)), 1).astype(np.float32)


def waves(frames: int = 30, **changes: Any) -> pibert.Flow:
    stated: dict[str, Any] = {"dx": DX, "dy": DY, "dt": DT, "name": "wave"} | UNITS | changes
    return pibert.flow(wave(frames), **stated)


def fit(flow: Any, **changes: Any) -> pibert.Model:
    how: dict[str, Any] = {"epochs": 2, "settings": TINY, "quiet": True} | changes
    return pibert.fit(flow, **how)


read_anything: Any = inspect.unwrap(pibert.read)  # without the checks of types in tests


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pibert.Model:
    return fit(waves(), out=tmp_path_factory.mktemp("api") / "run", epochs=5)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Flows


def test_arrays_tensors_xarray_and_files_give_the_same_flow(tmp_path: Path) -> None:
    import xarray as xr

    array = wave(6)
    u, v = array[:, 0], array[:, 1]
    axes = {"y": DY * np.arange(8), "x": DX * np.arange(12), "time": DT * np.arange(6)}
    units = {"y": "m", "x": "m", "time": "s"}
    coords = {name: (name, axis, {"units": units[name]}) for name, axis in axes.items()}
    named: dict[str, Any] = {
        "u": u,
        "v": v,
        **{"t" if n == "time" else n: a for n, a in axes.items()},
    }
    dataset = xr.Dataset(
        {n: (("time", "y", "x"), a, {"units": "m/s"}) for n, a in (("u", u), ("v", v))}, coords
    )
    np.savez(tmp_path / "wave.npz", **named)
    flows = {
        "array": waves(6),
        "tensor": pibert.flow(torch.from_numpy(array), dx=DX, dy=DY, dt=DT, **UNITS),
        "by name": pibert.flow(named, **UNITS),
        "dataset": pibert.flow(dataset, family="none"),
        "array of xarray": pibert.flow(dataset.to_array("channel"), **UNITS),
        "file": pibert.read("wave.npz", **UNITS),
        "pattern": pibert.read("wave*.npz", **UNITS),
        "list": pibert.read(["wave.npz"], **UNITS),
    }
    for name, flow in flows.items():
        (own,) = flow
        assert np.array_equal(flow.numpy(), array), name
        assert own.spec.channels == ("u", "v") and own.spec.units == ("m/s", "m/s"), name
        assert own.spec.dt == pytest.approx(DT), name
        assert (own.spec.grid.dx, own.spec.grid.dy) == pytest.approx((DX, DY)), name
        assert (own.length_unit, own.time_unit) == ("m", "s"), name


def test_channels_masks_bodies_and_parameters_are_stated() -> None:
    array = np.concatenate((wave(4), wave(4)[:, :1]), axis=1)
    known = np.ones((8, 12), bool)
    known[2, 3] = False
    body = np.zeros((8, 12), bool)
    body[5] = True
    flow = waves(4, mask=known, body=body, parameters={"Re": 100.0})
    assert flow[0].parameters == {"Re": 100.0}
    assert np.array_equal(flow[0].known()[1].numpy(), known & ~body)
    assert np.isnan(flow.numpy()[:, :, 2, 3]).all()
    assert not waves(4, parameters=None, sides=None)[0].parameters
    named = pibert.flow(array, dx=DX, dy=DY, dt=DT, channels=("u", "v", "T"))
    assert named[0].spec.channels == ("u", "v", "T")
    by_name = {"u": array[:, 0], "v": array[:, 1], "T": array[:, 2]}
    some = pibert.flow(by_name, dx=DX, dy=DY, dt=DT, channels=("T", "u"))
    assert some[0].spec.channels == ("T", "u")
    assert np.array_equal(some.numpy(), array[:, [2, 0]])
    placed = {"x": DX * np.arange(12), "y": DY * np.arange(8), "all": array}
    assert pibert.flow(placed, dt=DT, channels=("u", "v", "T"))[0].spec.grid.dx == pytest.approx(DX)
    with refused("(8, 12)", "(4, 8, 12)", "(7, 12)"):
        waves(4, mask=known[1:])
    with refused("True and False", "float64", error=TypeError):
        waves(4, mask=known.astype(float))


@pytest.mark.parametrize("kind", ["arrays", "xarray"])
@pytest.mark.parametrize("varies", [False, True])
def test_masks_follow_fields_whose_axes_descend_or_that_are_turned(kind: str, varies: bool) -> None:
    array, known, body = wave(4), np.ones((4, 8, 12), bool), np.zeros((8, 12), bool)
    known[1 if varies else slice(None), 2, 3] = False
    body[6, 1:3] = True
    upward = {"y": DY * np.arange(8), "x": DX * np.arange(12), "t": DT * np.arange(4)}
    mask = known if varies else known[0]
    expected = known & ~body

    def make(**stated: Any) -> np.ndarray:
        """The known points of fields that are stored from the top right corner."""
        fields = {"u": array[:, 0, ::-1, ::-1], "v": array[:, 1, ::-1, ::-1]}
        axes = {**upward, "x": upward["x"][::-1], "y": upward["y"][::-1]}
        stated = {"mask": mask[..., ::-1, ::-1], "body": body[::-1, ::-1], **stated}
        if kind == "arrays":
            return pibert.flow({**fields, **axes}, **stated)[0].known().numpy()
        xarray = pytest.importorskip("xarray")
        named = {name: (("t", "y", "x"), values) for name, values in fields.items()}
        return pibert.flow(xarray.Dataset(named, axes), **stated)[0].known().numpy()

    assert np.array_equal(make(), expected)
    assert np.array_equal(make(flip=("y", "v")), expected[:, ::-1])
    assert np.array_equal(make(rotate=90), np.rot90(expected, -1, (1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_hidden_values_of_a_masked_array_are_unknown(dtype: str) -> None:
    hidden = np.zeros((4, 8, 12), bool)
    hidden[1, 2, 3] = True
    u, v = (np.ma.masked_array((100 * wave(4)[:, i]).astype(dtype), mask=hidden) for i in (0, 1))
    flow = pibert.flow({"u": u, "v": v}, dx=DX, dy=DY, dt=DT)
    assert np.array_equal(flow[0].known().numpy(), ~hidden)
    assert np.array_equal(flow.numpy()[:, 0][~hidden], u.data[~hidden])


def test_a_mask_adds_to_those_of_the_data() -> None:
    array, outlier, known = wave(4), np.zeros((4, 8, 12), bool), np.ones((8, 12), bool)
    outlier[1, 2, 3], known[4, 5] = True, False
    named = {"u": array[:, 0], "v": array[:, 1], "outlier": outlier}
    found = pibert.flow(named, dx=DX, dy=DY, dt=DT, mask=known)[0].known().numpy()
    assert np.array_equal(found, known & ~outlier)


def test_several_flows_are_one_set() -> None:
    flow = pibert.api.flows.as_flow([waves(4), waves(4, name="other"), waves(5)])
    assert flow.recordings.names == ("wave", "other", "wave-2") and len(flow[1:]) == 2
    assert flow["wave-2"].num_frames == 5 and "3 recordings" in repr(flow)
    batch = pibert.flow(np.stack([wave(4), wave(4, 2.0)]), axes="btcyx", dx=DX, dy=DY, dt=DT)
    assert len(batch) == 2 and np.array_equal(batch.numpy(1), wave(4, 2.0))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: pibert.flow(np.zeros(4)), ["flow", "(4,)"]),
        (
            lambda: pibert.flow({"u": wave(4)[:, 0], "v": wave(3)[:, 1]}),
            ["(4, 8, 12)", "(3, 8, 12)"],
        ),
        (lambda: pibert.flow([["a"]]), ["expected numbers"]),
        (
            lambda: pibert.flow(pytest.importorskip("pandas").DataFrame({"u": [0.5, 1.5]})),
            ["table of pandas", "pibert.read"],
        ),
        (lambda: waves(4, dt="0.1 s"), ["dt", "a number", "0.1 s"]),
        (lambda: waves(4, channels=("u", "u")), ["different names", "'u', 'u'"]),
        (lambda: waves(4, channels=("u",)), ["every channel", "(4, 2, 8, 12)", "select"]),
        (lambda: waves(4, mask=np.zeros((8, 12), bool)), ["known", "found none", "mask="]),
        (lambda: waves(4, scale="5 mm"), ["0.05mm/px", "5 mm"]),
        (lambda: waves(4, spacing=1.0), ["unknown arguments spacing", "dx"]),
        (lambda: pibert.read("nowhere/*.txt"), ["nowhere"]),
        (lambda: read_anything(wave(4)), ["ndarray", "pibert.flow"]),
        (lambda: pibert.flow(np.full((4, 2, 8, 12), np.nan)), ["known values", "NaN"]),
        (lambda: waves(4).save("wave.txt"), [".txt", ".h5"]),
        (lambda: pibert.compare("unet", waves(30)), ["a list of models"]),
        (lambda: pibert.compare(["resnet"], waves(30)), ["resnet", "unet"]),
        (lambda: fit(waves(1)), ["at least 2 frames", "found 1"]),
        (lambda: fit(waves(8), start="cylinder-mr"), ["cylinder-mr", "parameter"]),
        (lambda: pibert.flow({"p": wave(8)[:, 0]}).fill(noise=0.1), ["flag_outliers=False"]),
        (lambda: pibert.load("cylinder-mr").calibrate(waves(8)), ["model.save('FOLDER')"]),
    ],
)
def test_wrong_input_is_refused_with_a_reason_and_nothing_is_written(
    call: Any, named: list[str], tmp_path: Path
) -> None:
    with refused(*named, error=(ValueError, TypeError, OSError)):
        call()
    assert list(tmp_path.iterdir()) == []


def test_flows_that_cannot_be_kept_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(flow: pibert.Flow, path: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(pibert.Flow, "save", full)
    with refused("No space left", error=OSError):
        fit(waves(8), out="runs/new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: waves(4, scale="5 mm"), "scale="),
        (
            lambda: pibert.read(ROOT / "pibert/weights/cylinder-mr/sample.h5", dt=9.0),
            "override_units=True",
        ),
        (lambda: fit(waves(30)).calibrate(leads=9), "leads=9"),
        (lambda: fit(waves(3)).evaluate(), "flow=FLOW"),
    ],
)
def test_errors_name_arguments_in_place_of_options(call: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert named in str(error.value)
    assert "--" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("(--pulse-delay 27us)", "(pulse_delay=27us)"),
        ("--set model.preset=base", 'settings={"model.preset": "base"}'),
        ("--parameter Re=NUMBER", 'parameters={"Re": NUMBER}'),
        ("(--channels u=u,v=b)", "(channels={'u': 'u', 'v': 'b'})"),
        ("(--no-flag-outliers)", "(flag_outliers=False)"),
        ("--fill-masked fills them", "fill_masked=True fills them"),
        ("--data FILE", "flow=FLOW"),
        ("pibert convert --parameter Re=NUMBER", "pibert convert --parameter Re=NUMBER"),
    ],
)
def test_notes_name_arguments_in_place_of_options(option: str, argument: str) -> None:
    assert in_python(f"state it: {option}") == f"state it: {argument}"


# Fitting


def test_a_saved_model_predicts_bit_for_bit_as_the_fitted_one(
    trained: pibert.Model, tmp_path: Path
) -> None:
    ahead = trained.rollout(waves(), 5)
    trained.save(tmp_path / "kept")
    again = pibert.load(tmp_path / "kept")
    assert torch.equal(again.rollout(waves(), 5).fields, ahead.fields)
    assert type(again) is type(trained) and isinstance(trained, Predictor)
    assert again.weights_sha256 == trained.weights_sha256
    by_array = trained.rollout(wave(1), 5, parameters={})
    assert np.array_equal(by_array, ahead.numpy())
    with refused("exists", error=FileExistsError):
        trained.save(tmp_path / "kept")


def test_it_learns_and_its_scores_are_those_of_its_predictions(trained: pibert.Model) -> None:
    scores: Any = trained.evaluate(rollout=2)
    assert scores["skill"]["all"] > 0.2
    assert scores.card["data"]["test_frames"] == 3 and scores.rollouts["steps"] == 2
    flow = waves()
    test = flow.numpy()[-4:]
    predicted = trained.step(test[:-1, None])[:, 0]
    rmse = np.sqrt(np.square(predicted - test[1:]).mean((0, 2, 3)))
    assert rmse == pytest.approx([scores["rmse"]["u"], scores["rmse"]["v"]], rel=1e-4)
    assert "m/s" in repr(scores) and "<table>" in scores._repr_html_()
    assert "skill" in repr(scores) and "rmse" in scores.metrics
    with pytest.raises(KeyError, match="no metric 'r2d2'"):
        scores["r2d2"]


def test_the_same_call_resumes_and_another_one_gets_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = fit(waves(), epochs=4, out="whole")
    epochs = []

    def stop(self: engine.Reporter, record: Any) -> None:
        epochs.append(record["epoch"])
        if len(epochs) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pibert.progress.TrainingProgress.epoch", stop)
        with pytest.raises(KeyboardInterrupt, match="out='runs/wave-pibert-mr' to resume"):
            fit(waves(), epochs=4)
    resumed = fit(waves(), epochs=4)
    assert resumed.path == Path("runs/wave-pibert-mr")
    assert resumed.weights_sha256 == whole.weights_sha256
    assert fit(waves(), epochs=1).path == Path("runs/wave-pibert-mr-2")
    with refused("training.epochs", "choose another folder"):
        fit(waves(), epochs=1, out="whole")
    other = waves(parameters={"Re": 1.0})
    with refused("another experiment", "flows-"):
        fit(other, epochs=4, out="whole")
    assert len(list(Path("whole").glob("flows-*.h5"))) == 1


def test_five_frames_fit_and_are_scored_and_three_are_not_scored() -> None:
    assert fit(waves(5)).evaluate().card["data"]["test_frames"] == 1
    few = fit(waves(3), out="three")
    with refused("test"):
        few.evaluate()


def test_a_model_is_trained_further_and_compared(trained: pibert.Model) -> None:
    tuned = fit(waves(), start=trained.path, settings={}, epochs=1, model=None)
    assert tuned.card["model"] == trained.card["model"]
    assert tuned.card["provenance"]["experiment"]["start"] == str(trained.path)
    ranking = pibert.compare(["dmd", trained], waves(), samples=60, quiet=True)
    assert isinstance(ranking, Ranking)
    assert sorted(ranking.order) == ["dmd", "persistence", "run"]
    assert ranking.order.index("run") < ranking.order.index("persistence")
    assert ranking._repr_html_().count("<tr>") == 4 and "<th" in ranking._repr_html_()
    other = pibert.compare(["dmd"], waves(), samples=80, quiet=True)
    assert ranking.folder != other.folder  # nothing of the first is overwritten or in the way
    assert "NMSE" in repr(ranking) and isinstance(ranking["dmd"], pibert.Model)


def test_fine_tuning_keeps_the_start_unless_an_epoch_is_better(
    trained: pibert.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    still = {"training.learning_rate": 0.0, "training.min_learning_rate": 0.0}
    how: dict[str, Any] = {"epochs": 1, "start": trained, "quiet": False}
    kept = fit(waves(), settings=still | {"rollout_training": "none"}, **how)
    assert kept.weights_sha256 == trained.weights_sha256
    assert "learning_rate" in capsys.readouterr().out
    wild = fit(waves(), settings={"training.learning_rate": 1.0}, out="wild", **how)
    errors = [model.evaluate()["nmse"]["all"] or 1.0 for model in (kept, wild)]
    assert errors[1] < 2 * errors[0]


def test_a_comparison_takes_settings_of_the_data_as_fit_does() -> None:
    flows = [waves(12, name=f"re{re}", parameters={"Re": re}) for re in (100, 200, 300, 400, 500)]
    split = {"data.split": "higher:Re"}
    ranking = pibert.compare(["dmd"], flows, samples=60, settings=split, quiet=True)
    (facts,) = json.loads((ranking.folder / "comparison.json").read_text())["data"].values()
    assert facts["split"] == "higher:Re"
    assert [f["parameters"]["Re"] for f in ranking.results["data"]["flow"]["flows"]] == [500]


# Forecasts


def test_a_forecast_has_truth_scores_pictures_and_files(
    trained: pibert.Model, tmp_path: Path
) -> None:
    flow = waves()
    found = trained.rollout(flow, 40, start=4)
    assert isinstance(found, Forecast) and found.fields.shape == (40, 2, 8, 12) and len(found) == 40
    assert torch.equal(found.truth[:25], torch.from_numpy(wave(30)[5:]))
    assert found.truth[25:].isnan().all()
    assert found.time.numpy() == pytest.approx(DT * np.arange(5, 45))
    assert found.plot().png.startswith(b"\x89PNG") and "skill" in repr(found)
    assert "<img" in found._repr_html_() and "<img" in flow._repr_html_()
    found.save("ahead.h5")
    assert np.array_equal(pibert.read("ahead.h5").numpy(), found.numpy())
    with refused(".h5", ".png", ".txt"):
        found.save("ahead.txt")
    for plot in (found.plot, flow.plot):
        assert plot("a.pdf").png.startswith(b"\x89PNG")  # what a notebook shows
        assert Path("a.pdf").read_bytes().startswith(b"%PDF")
    ahead = trained.predict(flow)
    assert len(ahead) == 30
    assert_close(ahead.fields[4], found.fields[0])
    assert trained.rollout("ahead.h5", 2).fields.shape[0] == 2


def test_intervals_need_a_calibration_and_contain_the_forecast(tmp_path: Path) -> None:
    model = fit(waves(60), out="run", settings=TINY | {"data.shares": {"train": 0.5, "valid": 0.1}})
    with refused("calibrat", error=(ValueError, OSError)):
        model.rollout(waves(60), 2, level=0.5)
    model.calibrate(leads=2)
    found = model.predict(waves(60), 2, level=0.5)
    assert (found.low <= found.fields).all() and (found.fields <= found.high).all()
    by_array = model.predict(wave(1), 2, level=0.5)
    assert by_array.intervals.level == 0.5
    with refused("at most 2 steps", "calibrate(leads=9)"):
        model.rollout(waves(60), 9, level=0.5)
    model.save("kept")
    assert pibert.load("kept").rollout(waves(60), 2, level=0.5).low.equal(found.low)


def test_a_flow_is_filled_selected_analysed_and_saved_without_a_model(tmp_path: Path) -> None:
    array = wave(40, speed=4.0)
    truth = array[5, :, 3, 4].copy()
    array[5, :, 3, 4] = np.nan
    gappy = pibert.flow(array, dx=DX, dy=DY, dt=DT, name="gappy", **UNITS)
    filled = gappy.fill(flag_outliers=False)
    marked = filled[0].filled
    assert isinstance(marked, torch.Tensor)
    assert marked.sum() == 1 and marked[5, 3, 4]
    assert np.abs(filled.numpy()[5, :, 3, 4] - truth).max() < 0.2 * np.abs(array[0]).std()

    part = gappy.select(frames=slice(8, 40), stride=2, channels=["v"], x=(0.25, None))
    assert_close(torch.from_numpy(part.numpy()), torch.from_numpy(array[8::2, 1:, :, 3:]))
    assert part[0].spec.dt == pytest.approx(2 * DT)
    with refused("'w'", "u, v"):
        gappy.select(channels=["w"])

    found = filled.stats(period=np.pi / 8, phases=4)
    assert found.summary()["stresses"]["uv"] == pytest.approx(-0.16, rel=0.05)
    with refused("period", "-1"):
        filled.stats(period=-1.0)

    again = pibert.read(filled.save(tmp_path / "filled.nc"))
    assert_close(torch.from_numpy(again.numpy()), torch.from_numpy(filled.numpy()))
    with refused("filled.txt", ".nc"):
        filled.save(tmp_path / "filled.txt")


def test_a_pretrained_model_fills_the_gaps_of_a_flow() -> None:
    array = wave(30)
    array[5, :, 3, 4] = np.nan
    settings = TINY | {"pretraining.epochs": 1, "pretraining.batch_size": 8}
    model = fit(waves(), epochs=1, settings=settings, out="run")
    gappy = pibert.flow(array, dx=DX, dy=DY, dt=DT, name="gappy", **UNITS)
    with refused("not trained to fill gaps", "run/pretraining"):
        model.fill(gappy)
    filled = pibert.load("run/pretraining").fill(gappy, flag_outliers=False)
    marked = filled[0].filled
    assert marked.sum() == 1 and marked[5, 3, 4]
    kept = np.isfinite(array)
    assert np.array_equal(filled.numpy()[kept], array[kept]) and np.isfinite(filled.numpy()).all()


def test_a_model_is_served(trained: pibert.Model) -> None:
    code = f"import pibert; pibert.load({str(trained.path)!r}).serve(0)"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            (address,) = re.findall(r"http://\S+", server.stdout.readline())
            wait_until(lambda: httpx.get(f"{address}ready").status_code == 200)
            assert httpx.get(f"{address}models").json()[0]["channels"] == ["u", "v"]
        finally:
            server.terminate()


# Plain PyTorch


def test_gradients_pass_through_step_and_a_loader_trains_a_bare_module(
    trained: pibert.Model,
) -> None:
    x = torch.from_numpy(wave(1))[None].requires_grad_()
    trained.step(x).square().sum().backward()
    assert x.grad is not None and bool(x.grad.abs().sum() > 0)
    loader = waves(12).loader(batch_size=4)
    samples: Any = loader.dataset
    assert isinstance(loader.dataset, torch.utils.data.Dataset) and len(samples) == 11
    module = pibert.build_model("pibert-mr", spec=samples.spec, **TINY["model.options"])
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in loader:
        loss = (module(batch.x, batch.parameters, batch.mask) - batch.y[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert any(not torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))
    bare = pibert.Model(module, samples.normalizer)
    with refused("found one in memory", "model.save"):
        bare.evaluate(waves())
    bare.save("bare")
    assert pibert.load("bare").rollout(waves(), 2).fields.isfinite().all()


def test_a_model_alone_is_scored_on_given_flows(trained: pibert.Model, tmp_path: Path) -> None:
    trained.save("kept")
    model = pibert.load("kept")
    with refused("found only a model", "model.evaluate(flow)"):
        model.evaluate()
    scores = model.evaluate(waves(10, name="other"), out="scores")
    assert scores.card["data"]["test_frames"] == 9 and (tmp_path / "scores/scores.json").exists()
    assert "8 x 12 points" in model._repr_html_()
