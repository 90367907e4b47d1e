"""``pibert predict`` and ``pibert rollout``: from a file and a model to predicted frames."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

import pibert
from pibert.data.format import Reader, check, write
from pibert.data.readers import open_recordings
from pibert.fields import Normalizer, Trajectory
from pibert.inference import InputWarning, save_model
from tests.command import Word, refusal, run, well
from tests.helpers import randomise, tiny_model, tiny_spec

SHAPE = (16, 24)
SPEC = tiny_spec(SHAPE, units=("m/s", "m/s"))
NORMALIZER = Normalizer((0.5, 0.0), (1.0, 0.5))


def output_of(*arguments: str | Path | float) -> str:
    return " ".join(well(*arguments).output.split())


def states(count: int) -> Tensor:
    rows, columns = torch.meshgrid(*(torch.arange(n).float() for n in SHAPE), indexing="ij")
    times = 0.3 * torch.arange(count).float()[:, None, None]
    u = 1 + torch.sin(0.4 * columns - times) * torch.cos(0.3 * rows)
    return torch.stack((u, 0.5 * torch.cos(0.2 * rows - times + 0.3 * columns)), dim=1)


def recorded(path: Path, count: int = 6, **changes: Any) -> Path:
    facts: dict[str, Any] = {
        "name": "a",
        "states": states(count),
        "time": 2.0 + 0.1 * torch.arange(count, dtype=torch.float64),
        "spec": SPEC,
        "parameters": {"Re": 900.0},
        "length_unit": "m",
        "time_unit": "s",
    }
    write(path, [Trajectory(**(facts | changes))])
    return path


def saved(folder: Path, name: str = "pibert", **options: Any) -> Path:
    net = tiny_model(name, **({"spec": SPEC} | options))
    if name == "pibert":
        net = randomise(net)
    return save_model(folder, net, NORMALIZER, trained={"forward": True})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "run")


def test_a_rollout_equals_that_of_the_predictor(tmp_path: Path, model: Path) -> None:
    source, out = recorded(tmp_path / "a.h5"), tmp_path / "out.h5"
    given = ("rollout", source, "--model", model, "--steps", 4, "--start", 1, "--out", out)
    assert "Wrote 4 frames" in output_of(*given)
    check(out)
    found, predictor = Reader(out)["a"], pibert.load(model)
    expected = predictor.rollout(states(6)[None, 1:2], 4, {"Re": 900.0})[0]
    assert torch.equal(found.read(), expected)
    assert found.time.tolist() == pytest.approx([2.2, 2.3, 2.4, 2.5])
    facts = found.local["prediction"]
    assert facts["model"] == "run" and facts["mode"] == "rollout" and facts["start"] == 1
    assert facts["weights_sha256"] == predictor.card["weights"]["sha256"]
    assert found.local["file"] == "a.h5" and found.parameters == {"Re": 900.0}
    # A parameter replaces that of the file; one far from the training is noted.
    shown = well(*given, "--overwrite", "--parameter", "Re=2")
    assert shown.stderr.count("'Re' is 2, 5.4 standard deviations") == 1
    assert "standard deviations" not in shown.stdout
    with pytest.warns(InputWarning):
        expected = predictor.rollout(states(6)[None, 1:2], 4, {"Re": 2.0})[0]
    assert torch.equal(Reader(out)["a"].read(), expected)


def test_predictions_are_marked_as_predicted_in_every_format(tmp_path: Path, model: Path) -> None:
    source = recorded(tmp_path / "a.h5", source={"kind": "simulated", "title": "a -- wake -->"})
    outs = [tmp_path / name for name in ("r.h5", "r.nc", "r.pvd", "r.xdmf")]
    named = [part for out in outs for part in ("--out", out)]
    well("rollout", source, "--model", model, "--steps", 3, *named)
    weights = pibert.load(model).card["weights"]["sha256"]
    for out in (*outs[:3], tmp_path / "r_frames", tmp_path / "r_frames" / "frame_000000.vti"):
        found = open_recordings(out)[0].source
        assert found["kind"] == "predicted" and found["predicted_from"] == "simulated"
        assert (found["model"], found["weights_sha256"]) == ("run", weights)
        assert found["title"] == "a -- wake -->"
    assert f"predicted by run (weights {weights[:12]})" in outs[3].read_text()
    assert "stated kind predicted" in output_of("inspect", outs[0], "--picture", tmp_path / "a.png")
    for command in ("rollout", "predict"):  # nor are they scored
        again = output_of(command, outs[0], "--model", model, "--out", tmp_path / f"{command}.h5")
        assert "predicted by run" in again and "not ground truth" in again and "NMSE" not in again


def test_scores_by_lead_time_end_with_the_recording(tmp_path: Path) -> None:
    source, out = recorded(tmp_path / "a.h5"), tmp_path / "out.h5"
    model = saved(tmp_path / "still", "persistence")
    result = run(
        "rollout", source, "--model", model, "--steps", 9, "--start", 2, "--out", out, "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["frames"], found["scored"], found["diverged"]) == (9, 3, False)
    assert found["written"] == [str(out)]
    truth = states(6).double()
    for lead in (1, 2, 3):
        error = (truth[2] - truth[2 + lead]).square()
        expected = float(error[0].sum() / truth[2 + lead, 0].square().sum())
        assert found["scores"][str(lead)]["nmse"]["u"] == pytest.approx(expected, rel=1e-4)
        assert found["scores"][str(lead)]["skill"]["all"] == pytest.approx(0.0, abs=1e-4)


def test_every_prediction_starts_from_recorded_frames(tmp_path: Path) -> None:
    source, out = recorded(tmp_path / "a.h5", 7), tmp_path / "out.h5"
    model = saved(tmp_path / "two", history=2)
    summary = json.loads(well("predict", source, "--model", model, "--out", out, "--json").stdout)
    assert (summary["frames"], summary["scored"]) == (6, 5)
    found, fields = Reader(out)["a"], states(7)
    windows = torch.stack([fields[i : i + 2] for i in range(6)])
    expected = pibert.load(model).step(windows, {"Re": 900.0})[:, 0]
    torch.testing.assert_close(found.read(), expected, rtol=1e-5, atol=1e-5)
    assert found.time.tolist() == pytest.approx([2.2, 2.3, 2.4, 2.5, 2.6, 2.7])
    error = (expected[:-1] - fields[2:]).double().square().sum()
    last = (fields[1:-1] - fields[2:]).double().square().sum()
    assert summary["scores"]["skill"]["all"] == pytest.approx(float(1 - error / last), rel=1e-4)
    # Windows do not lead across a gap in time.
    time = torch.tensor([0.0, 0.1, 0.2, 1.0, 1.1, 1.2], dtype=torch.float64)
    recorded(source, time=time)
    well("predict", source, "--model", model, "--out", out, "--overwrite")
    assert Reader(out)["a"].time.tolist() == pytest.approx([0.2, 0.3, 1.2, 1.3])
    across = ("rollout", source, "--model", model, "--start", 3, "--out", tmp_path / "b.h5")
    assert "from 1 to 5" in refusal(*across)


def test_predictions_of_single_frames_end_at_a_gap_in_time(tmp_path: Path, model: Path) -> None:
    time = torch.tensor([0.0, 0.1, 0.2, 1.0, 1.1, 1.2], dtype=torch.float64)
    source, out = recorded(tmp_path / "a.h5", time=time), tmp_path / "out.h5"
    summary = json.loads(well("predict", source, "--model", model, "--out", out, "--json").stdout)
    assert (summary["frames"], summary["scored"]) == (6, 4)
    after = [0.1, 0.2, 0.3, 1.1, 1.2, 1.3]
    assert Reader(out)["a"].time.tolist() == pytest.approx(after)
    found = pibert.load(model).predict(pibert.read(source))
    assert found.time.tolist() == pytest.approx(after)
    truth = states(6)
    assert torch.equal(found.truth[[0, 1, 3, 4]], truth[[1, 2, 4, 5]])
    assert bool(found.truth[[2, 5]].isnan().all())
    error = (found.fields - found.truth)[[0, 1, 3, 4]].double().square().sum()
    nmse = float(error / truth[[1, 2, 4, 5]].double().square().sum())
    assert summary["scores"]["nmse"]["all"] == pytest.approx(nmse, rel=1e-4)


def test_several_outputs_are_written_at_once(tmp_path: Path, model: Path) -> None:
    source, folder = recorded(tmp_path / "a.h5"), tmp_path / "out"
    folder.mkdir()
    names = ("r.h5", "r.nc", "r.pvd", "r.xdmf", "r.png")
    outs = [part for name in names for part in ("--out", folder / name)]
    given = ("rollout", source, "--model", model)
    well(*given, "--steps", 3, "--vorticity", "--show", "1,3", *outs)
    assert {path.name for path in folder.iterdir()} == {*names, "r_frames", "r.xdmf.h5"}
    assert len(list((folder / "r_frames").iterdir())) == 3
    with h5py.File(folder / "r.xdmf.h5") as file:
        assert file["velocity"].shape == (3, *SHAPE, 3) and "vorticity" in file
    assert "exists; add --overwrite" in refusal(*given, *outs)
    well(*given, "--steps", 2, "--overwrite", "--out", folder / "r.pvd")
    assert len(list((folder / "r_frames").iterdir())) == 2
    well(*given, "--steps", 2, "--format", "h5", "--out", folder / "x")
    check(folder / "x")


def with_a_lost_frame(path: Path) -> Path:
    """Of six frames the third."""
    fields, valid = states(6), torch.ones(6, *SHAPE, dtype=torch.bool)
    fields[2], valid[2] = math.nan, False
    return recorded(path, 6, states=fields, valid=valid)


def test_a_lost_frame_affects_only_the_next_prediction(tmp_path: Path, model: Path) -> None:
    source, out = with_a_lost_frame(tmp_path / "a.h5"), tmp_path / "out.h5"
    shown = output_of("predict", source, "--model", model, "--out", out)
    assert "frame 2 holds no finite value" in shown
    # Of six predicted frames the last is not in the recording, nor is the lost one.
    assert "3 of 6" in shown
    check(out)
    found, expected = Reader(out)["a"], pibert.load(model).step(states(6)[:, None], {"Re": 900.0})
    assert found.known().flatten(1).any(1).tolist() == [True, True, False, True, True, True]
    kept = [0, 1, 3, 4, 5]
    assert torch.equal(found.read()[kept], expected[kept, 0])


def test_other_grids_and_units_are_converted_to_those_of_the_model(
    tmp_path: Path,
) -> None:
    model, out = saved(tmp_path / "still", "persistence"), tmp_path / "out.h5"
    rows, columns = np.meshgrid(np.arange(8) * 400.0, np.arange(12) * 600.0, indexing="ij")
    u = np.stack([1000.0 + rows + 0 * columns] * 3)
    source = tmp_path / "flow.npz"
    np.savez(source, v=0 * u, u=u, x=columns[0], y=rows[:, 0], t=np.arange(3) * 0.1)
    shown = output_of(
        *("rollout", source, "--model", model, "--steps", 2, "--out", out),
        *("--unit", "mm/s", "--length-unit", "mm", "--time-unit", "s"),
    )
    assert "metres and seconds" in shown and "resampled" in shown
    found = Reader(out)[0]
    assert found.spec.grid.shape == (8, 12) and found.spec.grid.dx == pytest.approx(0.6)
    assert found.spec.units == ("m/s", "m/s") and found.spec.channels == ("u", "v")
    expected = torch.from_numpy(u[0] / 1000).float()
    torch.testing.assert_close(found.read()[1, 0], expected, rtol=1e-4, atol=1e-4)


def test_missing_metadata_of_an_array_is_assumed_and_reported(tmp_path: Path, model: Path) -> None:
    source, out = tmp_path / "a.npy", tmp_path / "out.h5"
    np.save(source, states(4).numpy())
    given = ("rollout", source, "--model", model, "--steps", 2, "--overwrite", "--out", out)
    shown = output_of(*given)
    assert "no unit is stated" in shown and "u in m/s, v in m/s" in shown
    assert "no spacing is stated" in shown and "7.2 x 3.2" in shown and "another scale" not in shown
    assert "no time step is stated" in shown and "0.1 apart" in shown
    found = Reader(out)[0]
    assert found.spec.dt is None and found.time.tolist() == [1.0, 2.0]
    expected = pibert.load(model).rollout(states(4)[None, :1], 2)[0]
    assert torch.equal(found.read(), expected)
    stated = output_of(
        *(*given, "--dt", 0.1, "--dx", 0.3, "--dy", 0.2, "--unit", "m/s", "--length-unit", "m"),
    )
    assert "is stated" not in stated and Reader(out)[0].spec.dt == 0.1


def test_predicted_times_advance_by_the_step_of_the_model(tmp_path: Path) -> None:
    """The model steps 0.1: frames said to be 0.04 apart have no frame at 0.1, but one at 0.2."""
    model, source, out = saved(tmp_path / "still", "persistence"), tmp_path / "a.npy", "out.h5"
    fields = states(7)
    np.save(source, fields.numpy())

    def run_at(
        command: str, dt: float, *more: float | str
    ) -> tuple[dict[str, Any], str, Trajectory]:
        given = (source, "--model", model, "--dt", dt, "--json", "--overwrite", *more)
        result = well(command, *given, "--out", tmp_path / out)
        return json.loads(result.stdout), result.stderr, Reader(tmp_path / out)[0]

    for steps, scored in ((1, []), (3, ["2"])):
        summary, notes, found = run_at("rollout", 0.04, "--steps", steps)
        assert list(summary["scores"]) == scored and summary["scored"] == len(scored)
        assert ("nothing to compare with" in notes) == (not scored)
        assert "0.04 apart" in notes
        assert found.time.tolist() == pytest.approx([0.1, 0.2, 0.3][:steps])
        assert found.spec.dt == pytest.approx(0.1)
    truth = fields[5].double()
    nmse = float((fields[0] - truth)[0].square().sum() / truth[0].square().sum())
    assert summary["scores"]["2"]["nmse"]["u"] == pytest.approx(nmse, rel=1e-4)

    summary, notes, found = run_at("predict", 0.04)
    assert summary["scored"] == 0 and "nothing to compare with" in notes
    assert found.time.tolist() == pytest.approx([0.1 + 0.04 * frame for frame in range(7)])
    summary, _, _ = run_at("predict", 0.05)
    assert summary["scored"] == 5
    error = (fields[:-2] - fields[2:]).double().square().sum()
    nmse = float(error / fields[2:].double().square().sum())
    assert summary["scores"]["nmse"]["all"] == pytest.approx(nmse, rel=1e-4)


def test_predictions_beyond_a_finely_sampled_recording_are_not_scored(tmp_path: Path) -> None:
    """The recording ends at 0.1 s; the second prediction is for one recorded step later."""
    model, source = saved(tmp_path / "still", "persistence"), tmp_path / "a.npy"
    np.save(source, states(101).numpy())
    given = (source, "--model", model, "--dt", 0.001, "--json", "--out", tmp_path / "out.h5")
    assert json.loads(well("predict", *given).stdout)["scored"] == 1


def test_a_diverging_rollout_keeps_the_frames_before(tmp_path: Path) -> None:
    net = tiny_model(spec=SPEC)
    with torch.no_grad():
        net.skip_scale.fill_(1e12)
    model = save_model(tmp_path / "wild", net, NORMALIZER, trained={"forward": True})
    source, out, png = recorded(tmp_path / "a.h5"), tmp_path / "out.h5", tmp_path / "out.png"
    result = run("rollout", source, "--model", model, "--steps", 50, "--out", out, "--out", png)
    assert result.exit_code == 1
    (shown,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    check(out)
    count = Reader(out)["a"].num_frames
    assert 1 <= count < 10 and f"stopped after {count} of 50 steps" in shown
    assert f"in step {count + 1} " in shown and png.exists()
    far = recorded(tmp_path / "far.h5", states=states(6) * 1e30)
    result = run("rollout", far, "--model", model, "--out", tmp_path / "none.h5")
    assert result.exit_code == 1 and "nothing was written" in result.stderr
    assert not (tmp_path / "none.h5").exists()


def test_impossible_predictions_are_refused_in_one_line(tmp_path: Path, model: Path) -> None:
    source, out = recorded(tmp_path / "a.h5"), tmp_path / "out.h5"
    two, short = saved(tmp_path / "two", history=2), recorded(tmp_path / "short.h5", 1)
    blind = with_a_lost_frame(tmp_path / "blind.h5")
    other = recorded(tmp_path / "p.h5", spec=replace(SPEC, channels=("u", "p")))
    given = ("--model", model, "--out", out)
    refusals: dict[tuple[Word, ...], str] = {
        ("rollout", source, *given, "--trajectory", "b"): "'b'; there are: a",
        ("rollout", source, *given, "--start", 6): "from 0 to 5",
        ("rollout", source, "--model", model, "--out", "flow.dat"): "ends in .h5",
        ("rollout", source, "--model", model, "--overwrite", "--out", source): "is the input",
        ("rollout", source, *given, "--format", "nc"): "promises .h5 but --format is nc",
        ("rollout", source, *given, "--show", "1"): "--show",
        ("predict", short, "--model", two, "--out", out): "the 2 consecutive frames",
        ("rollout", blind, *given, "--start", 2): "start from another",
        ("rollout", other, *given): "['u', 'v']",
    }
    for words, named in refusals.items():
        assert named in refusal(*words)
    assert not out.exists() and not list(tmp_path.glob(".*"))


_MEASURE = """
import resource, sys
from pibert.cli import app
arguments = sys.argv[1:]
try:
    app(arguments, standalone_mode=False)
finally:
    print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def peak_megabytes(*arguments: str | Path | int) -> float:
    command = [sys.executable, "-c", _MEASURE, *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stderr.rpartition("PEAK")[2]) / 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffixes", "few", "many", "allowed"),
    [
        ((".nc", ".pvd", ".xdmf"), 200, 2000, 20),
        ((".h5",), 1000, 5000, 20),
    ],
)
def test_memory_does_not_grow_with_the_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffixes: tuple[str, ...],
    few: int,
    many: int,
    allowed: int,
) -> None:
    """A frame has 64 KiB: 1800 of them are 118 MB, 4000 are 262 MB."""
    # glibc returns freed frames at once, so that the peak is the memory in use without holes.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "32768")
    shape = (64, 128)
    spec = tiny_spec(shape)
    net = tiny_model("persistence", spec=spec)
    model = save_model(tmp_path / "still", net, NORMALIZER, trained={"forward": True})
    source = recorded(tmp_path / "a.h5", 3, states=torch.rand(3, 2, *shape), spec=spec)
    peaks = []
    for steps in (few, many):
        outs = [part for s in suffixes for part in ("--out", tmp_path / f"{steps}{s}")]
        peaks.append(peak_megabytes("rollout", source, "--model", model, "--steps", steps, *outs))
    assert peaks[1] - peaks[0] < allowed, peaks


def test_pixels_are_not_predicted_as_metres_per_second(tmp_path: Path, model: Path) -> None:
    text = (Path(__file__).parent / "data" / "readers" / "files" / "openpiv.txt").read_text()
    for name in ("B1.txt", "B2.txt"):
        (tmp_path / name).write_text(text)
    arguments = ("predict", tmp_path / "B*.txt", "--model", model, "--out", tmp_path / "r.nc")
    for words, found in (
        (arguments, "16 x 16 apart"),
        ((*arguments, "--unit", "px/frame"), "px/frame"),
    ):
        message = refusal(*words)
        assert found in message and "give --scale and --pulse-delay" in message
    well(*arguments, "--scale", "20px/mm", "--pulse-delay", "1ms", "--dt", "0.1")
    with h5py.File(tmp_path / "r.nc") as file:
        assert file["t"].attrs["units"] in ("s", b"s") and file["u"].attrs["units"] == "m/s"


@pytest.mark.parametrize("command", ["predict", "rollout"])
def test_filled_points_are_input_but_not_scored(command: str, tmp_path: Path, model: Path) -> None:
    filled = torch.zeros(6, *SHAPE, dtype=torch.bool)
    filled[5, 3:5, 7] = True  # truth alone: no frame follows
    found = []
    for value in (0.0, 50.0):
        fields = torch.where(filled[:, None], value, states(6))
        source = recorded(tmp_path / "a.h5", states=fields, filled=filled)
        out = tmp_path / f"{value}.h5"
        steps = ("--steps", 5) if command == "rollout" else ()
        asked = (command, source, "--model", model, "--out", out, *steps)
        found.append(json.loads(run(*asked, "--json").stdout)["scores"])
    assert found[0] == found[1] and found[0]
    shown = output_of(*asked, "--overwrite")
    assert "filled vectors" in shown and "not scored" in shown
