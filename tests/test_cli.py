"""The command line: what it prints, what it leaves behind, and how it says no."""

import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.download import size_text
from pibert.data.format import Reader, check
from pibert.data.readers import open_recordings
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import prepare
from tests.command import Word, refusal, run, well
from tests.helpers import small_disk
from tests.lookalikes.piv import sample, write_openpiv
from tests.lookalikes.realpdebench import TANDEMS, write_root

ROOT = Path(__file__).parents[1]


def save_flow(folder: Path) -> Path:
    """A shear with a vortex as .npz, without a word on time and units."""
    y, x = np.mgrid[0:16, 0:24] * 0.1
    u = np.stack([1 + y + 0.1 * frame * np.sin(3 * y) for frame in range(4)])
    v = np.stack([0.2 * np.sin(3 * x + 0.1 * frame) for frame in range(4)])
    path = folder / "shear.flow.npz"
    np.savez(path, u=u, v=v, x=x[0], y=y[:, 0])
    return path


def test_inspect_summarises_a_file_and_plots_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = well("inspect", save_flow(tmp_path).name).output
    for words in ("16 x 24", "dx 0.1", "dt not stated", "no time step", "What to do"):
        assert words in shown
    assert Path("outputs/shear.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_prints_json_that_hints_have_changed(tmp_path: Path) -> None:
    hints = ("--dt", 0.5, "--unit", "m/s", "--length-unit", "m", "--override-units")
    more = ("--channels", "u=v,v=u", "--parameter", "Re=100", "--dx", 0.2)
    facts = json.loads(well("inspect", save_flow(tmp_path), "--json", *hints, *more).stdout)
    assert facts["dt"] == 0.5 and facts["length_unit"] == "m" and facts["spacing"][0] == 0.2
    assert facts["parameters"] == {"Re": [100.0, 100.0]}
    named = {channel["name"]: channel for channel in facts["channels"]}
    assert named["v"]["low"] == pytest.approx(1.0) and named["u"]["unit"] == "m/s"
    assert {"code", "text", "remedy", "severity"} <= set(facts["notes"][0])


def test_a_table_without_a_field_is_shown_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "drag.csv"
    path.write_text("t,Cd\n0.5,1.25\n1.5,1.75\n2.5,1.5\n")
    shown = well("inspect", path).output
    assert "3 rows" in shown and "Cd" in shown and "no field" in shown
    assert json.loads(well("inspect", path, "--json").stdout)["columns"]["Cd"] == [1.25, 1.75]


def test_convert_makes_a_native_file(tmp_path: Path) -> None:
    """A value that is not finite becomes a missing point."""
    path, out = save_flow(tmp_path), tmp_path / "out.h5"
    arrays = dict(np.load(path))
    arrays["v"][2, 3, 4] = np.nan
    np.savez(path, **arrays)
    assert json.loads(well("inspect", path, "--json").stdout)["missing_share"] > 0
    well("convert", path, out, "--dt", 0.1, "--stride", 2, "--keep", "v")
    check(out)
    (trajectory,) = Reader(out)
    assert trajectory.states.shape == (2, 1, 16, 24)
    assert (~trajectory.known()).nonzero().tolist() == [[1, 3, 4]]
    assert trajectory.spec.channels == ("v",) and trajectory.spec.dt == pytest.approx(0.2)
    assert trajectory.local["file"] == "shear.flow.npz"
    well("convert", path, tmp_path / "small.h5", "--size", "8x12")
    assert Reader(tmp_path / "small.h5")[0].spec.grid.shape == (8, 12)


def test_convert_states_family_sides_and_parameters_also_of_its_own_files(tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{name}.h5" for name in ("first", "second", "other"))
    output = well("convert", save_flow(tmp_path), first, "--dt", "0.1").stdout
    assert "assuming incompressible flow" in output
    stated = ("--parameter", "Re=3000", "--sides", "periodic", "--family", "incompressible")
    well("convert", first, second, *stated)
    (trajectory,) = Reader(second)
    assert trajectory.parameters == {"Re": 3000.0} and trajectory.spec.grid.periodic_x
    assert trajectory.spec.family == "incompressible" and "family" not in trajectory.local
    again = ("convert", second, other, "--parameter", "Re=100")
    assert "Re is 3000 in the file, but you state 100" in refusal(*again)
    assert not other.exists()
    assert "Re 3000 -> 100" in well(*again, "--override-metadata").stderr
    assert Reader(other)[0].parameters == {"Re": 100.0}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("inspect absent.npz", "absent.npz: there is no such file"),
        ("inspect broken.npz", "broken.npz"),
        ("inspect shear.flow.npz --dt -1", "dt must be positive, found -1"),
        ("convert shear.flow.npz out.h5 --frames 9", "--frames takes a range"),
        ("convert shear.flow.npz out.h5 --scenario fsi", "kind 'arrays' has no option scenario"),
        ("convert shear.flow.npz shear.flow.npz", "is the input or a file of it"),
        ("convert shear.flow.npz notes.md", "notes.md exists; add --overwrite"),
        ("convert shear.flow.npz /proc/x.h5", "/proc/x.h5: cannot write"),
        ("convert shear.flow.npz locked.h5 --overwrite", "locked.h5 is read-only"),
        ("generate hat", "'hat'"),
    ],
)
def test_wrong_input_gives_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = save_flow(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "broken.npz").write_bytes(flow.read_bytes()[:900])
    (tmp_path / "locked.h5").touch(0o444)
    before = sorted(tmp_path.iterdir())
    assert named in refusal(*words.split())
    assert sorted(tmp_path.iterdir()) == before


# Generation

PIV_FILES = Path(__file__).parent / "data" / "readers" / "files"
TINY = ["--samples", "2", "--set", "frames=3", "--set", "points=16"]


# Downloads


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyarrow")
    return write_root(tmp_path_factory.mktemp("hub"), frames=60)


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_a_download_shows_sizes_first_and_then_how_to_look_at_it(hub: Path, tmp_path: Path) -> None:
    to = tmp_path / "my data"
    arguments = ("download", "realpdebench", "cylinder", "fsi", "--to", to, "--from", hub)
    planned = well(*arguments, "--dry-run").output
    wanted = {name: data for name, data in contents(hub).items() if "numerical" not in name}
    total = size_text(sum(map(len, wanted.values())))
    for words in ("cylinder/hf_dataset/real", "fsi/hf_dataset/real", total):
        assert words in planned
    assert not to.exists()
    output = well(*arguments).output
    assert contents(to) == wanted
    line = f"pibert inspect '{to}' --scenario fsi --type real"
    assert line in output
    shown = run(*shlex.split(line)[1:], "--json")
    assert json.loads(shown.stdout)["kind"] == "realpdebench"


def test_an_interrupted_download_is_reported_and_resumed(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("download", "realpdebench", "fsi", "--to", tmp_path, "--from", hub)
    monkeypatch.setattr("pibert.data.download._COPY_BYTES", 1 << 16)

    def pull_the_plug(progress: Any, task: Any, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pibert.cli.download._update", pull_the_plug)
        result = run(*arguments)
    assert result.exit_code == 130
    assert result.stderr == "interrupted: rerun the command to resume\n"
    begun = [name for name in contents(tmp_path) if name.endswith(".partial")]
    assert len(begun) == 1
    assert run(*arguments).exit_code == 0
    wanted = [name for name in contents(hub) if "fsi" in name and "numerical" not in name]
    assert sorted(contents(tmp_path)) == sorted([*wanted, "version.json"])


def test_a_source_without_all_shards_is_named_and_can_be_completed(
    hub: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(hub, source)
    lost = sorted(source.glob("fsi/hf_dataset/real/data-*.arrow"))[1]
    lost.unlink()
    arguments = ("download", "realpdebench", "fsi", "--to", tmp_path / "to", "--from", source)
    message = refusal(*arguments)
    assert lost.name in message and "source" in message and "rerun" in message
    shutil.copy(hub / lost.relative_to(source), lost)
    assert "Everything is in" in well(*arguments).output


def test_impossible_downloads_are_refused(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, source = ("download", "realpdebench"), ("--from", hub)
    refusals: dict[tuple[Word, ...], str] = {
        ("foil", "--to", tmp_path, *source): "'foil'",
        ("fsi", "--to", tmp_path, "--from", tmp_path / "a"): "no such folder",
        ("fsi", "--to", tmp_path, *source, "--revision", "x"): "not for a folder",
    }
    for words, named in refusals.items():
        assert named in refusal(*start, *words)
    size = sum(len(data) for name, data in contents(hub).items() if "fsi" in name) // 2
    monkeypatch.setattr(
        "pibert.data.download.shutil.disk_usage", lambda path: SimpleNamespace(free=size + 50_000)
    )
    # There is room for either scenario, but not for both.
    assert run(*start, "fsi", "--to", tmp_path, *source, "--dry-run").exit_code == 0
    assert "make room" in refusal(*start, "cylinder", "fsi", "--to", tmp_path, *source)
    assert list(tmp_path.iterdir()) == []


# Options of readers, patterns, other layouts


def test_a_root_with_several_sets_asks_for_a_choice(hub: Path, tmp_path: Path) -> None:
    assert "cylinder numerical" in refusal("inspect", hub)
    chosen = ("--scenario", "cylinder", "--type", "numerical")
    assert json.loads(well("inspect", hub, *chosen, "--json").stdout)["shape"] == [32, 64]
    shown = " ".join(well("inspect", hub, *chosen, "--picture", tmp_path / "x.png").output.split())
    # What the source states does not hide what was found.
    assert "kind realpdebench" in shown and "stated kind simulated" in shown
    out = tmp_path / "fsi.h5"
    well("convert", hub, out, "--scenario", "fsi", "--type", "real", "--max-frames", "2")
    assert [t.name for t in Reader(out)] == list(TANDEMS)
    assert "'foul'" in refusal("inspect", hub, "--scenario", "foul")
    assert "real, numerical" in refusal("inspect", hub, "--type", "measured")


def test_a_pattern_names_a_series_of_vector_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(9, 12):
        write_openpiv(tmp_path / f"B{number}.txt", sample(), flags=np.zeros((4, 6)))
    write_openpiv(tmp_path / "C1.txt", sample(5, 5), flags=np.zeros((5, 5)))
    for _ in range(2):  # the second time the target is there
        well("convert", "B*.txt", "out.h5", "--dt", "0.5", "--overwrite")
    assert Reader(Path("out.h5"))[0].states.shape == (3, 2, 4, 6)
    well("inspect", "B*.txt")
    assert [path.name for path in Path("outputs").iterdir()] == ["B.png"]
    assert "no file matches this pattern" in refusal("inspect", "D*.txt")
    assert "no column 'no'" in refusal("convert", "B9.txt", "a.h5", "--channels", "u=no")


def test_the_advice_of_inspect_on_pixels_leads_to_metres_per_second(tmp_path: Path) -> None:
    def problems(*words: str | Path) -> list[dict[str, Any]]:
        facts = json.loads(well("inspect", *words, "--json").stdout)
        return [own for own in facts["problems"] if own["topic"] == "pixels"]

    folder, out = tmp_path / "run", tmp_path / "out.h5"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"B{number}.txt").write_text((PIV_FILES / "openpiv.txt").read_text())
    (advice,) = (own["advice"] for own in problems(folder))
    command = advice.rpartition(": pibert ")[2].replace("LENGTH", "0.05mm").replace("TIME", "1ms")
    assert command == f"convert {folder} OUT.h5 --scale 0.05mm/px --pulse-delay 1ms"
    well(*command.replace("OUT.h5", str(out)).split())
    assert Reader(out)[0].read()[0, 0].median().item() == pytest.approx(3 * 0.05, rel=0.05)
    assert problems(out) == problems(PIV_FILES / "tsi_calibrated.vec") == []
    # What was called m/s instead is flagged, also in the file that was made of it.
    wrong = ("--unit", "m/s", "--length-unit", "mm", "--dt", "1")
    well("convert", folder, tmp_path / "wrong.h5", *wrong)
    for words in ((folder, *wrong), (tmp_path / "wrong.h5",)):
        (found,) = problems(*words)
        assert found["serious"] and "16 x 16 apart" in found["why"]


@pytest.fixture(scope="module")
def cavities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("flows") / "cavities.h5"
    assert run("generate", "cavity", *TINY, "--out", out).exit_code == 0
    return out


def test_a_full_disk_leaves_nothing_behind(cavities: Path, tmp_path: Path) -> None:
    out, cases = tmp_path / "out.h5", tmp_path / "cases"
    with small_disk(5000):
        native = refusal("convert", cavities, out)
        other = refusal("convert", cavities, cases, "--to", "cfdbench", "--problem", "cavity")
    assert str(out) in native and "File too large" in native
    assert "case0000: cannot write: " in other
    assert list(tmp_path.iterdir()) == []


def test_cavities_can_be_written_as_cases_of_cfdbench(cavities: Path, tmp_path: Path) -> None:
    arguments = ("convert", cavities, tmp_path / "new", "--to", "cfdbench", "--max-frames", "2")
    cavity = ("--problem", "cavity", "--subset", "bc")
    well(*arguments, *cavity)
    recordings = open_recordings(tmp_path / "new")
    assert recordings.kind == "cfdbench"
    assert recordings.names == ("cavity_bc_case0000", "cavity_bc_case0001")
    assert recordings[1].states.shape == (2, 2, 64, 64)
    before = contents(tmp_path)
    for words, named in {
        (*arguments, *cavity): "exists; remove it",
        arguments: "needs --problem, one of cavity",
        (*arguments, "--problem", "tube", "--size", "8x8"): "--keep and --size",
        (*arguments, "--problem", "cylinder"): "expected a body",
        ("convert", cavities, "x.h5", "--problem", "dam"): "goes with --to cfdbench",
    }.items():
        assert named in refusal(*words)
    assert contents(tmp_path) == before and not (tmp_path / "new" / "cylinder").exists()


def test_clean_fields_can_be_measured_as_they_are_converted(cavities: Path, tmp_path: Path) -> None:
    out = tmp_path / "piv.h5"
    well("convert", cavities, out, "--piv", "window=1,noise=0,outliers=0,missing=0.25,seed=3")
    clean, measured = Reader(cavities)[0], Reader(out)[0]
    assert measured.local["measurement"]["seed"] == 3 and measured.spec.channels == ("u", "v")
    known = measured.known()
    assert float(known.double().mean()) == pytest.approx(0.75, abs=0.06)
    velocities = clean.read(channels=(0, 1)).movedim(1, -1)
    assert torch.equal(measured.read().movedim(1, -1)[known], velocities[known])
    for wrong, named in {
        "window=1.5": "whole number",
        "missing=2": "at most 1",
    }.items():
        assert named in refusal("convert", cavities, out, "--piv", wrong)


# Bodies that a recording does not mark


SHAPE = (24, 32)


def cylinder() -> np.ndarray:
    x, y = np.meshgrid(0.1 * np.arange(SHAPE[1]), 0.1 * np.arange(SHAPE[0]))
    return np.hypot(x - 1, y - 1.2) <= 0.45


@pytest.fixture
def wake(tmp_path: Path) -> Path:
    """A flow around a cylinder whose inside is stored as zeros."""
    x, y = np.meshgrid(0.1 * np.arange(SHAPE[1]), 0.1 * np.arange(SHAPE[0]))
    t = 0.2 * np.arange(6)[:, None, None]
    u = np.where(cylinder(), 0, 1 + 0.3 * np.sin(2 * x - t) * np.cos(2 * y))
    v = np.where(cylinder(), 0, -0.3 * np.cos(2 * x - t) * np.sin(2 * y))
    path = tmp_path / "wake.npz"
    axes = {"x": x[0], "y": y[:, 0], "t": t[:, 0, 0]}
    np.savez(path, u=u.astype("f4"), v=v.astype("f4"), **axes)
    return path


def test_inspect_advises_how_to_mark_a_body(wake: Path, tmp_path: Path) -> None:
    count = int(cylinder().sum())
    found = json.loads(run("inspect", wake, "--json").stdout)
    assert found["zeros_static"] == count and found["body_share"] == 0
    (finding,) = [item for item in found["problems"] if item["topic"] == "zero vectors"]
    assert f"pibert convert {wake} OUT.h5 --body zeros" in finding["advice"]
    result = run("convert", wake, tmp_path / "out.h5", "--body", "zeros")
    assert result.exit_code == 0, result.output
    assert f"{count} of 768 points" in " ".join(result.output.split())
    check(tmp_path / "out.h5")
    (written,) = Reader(tmp_path / "out.h5")
    assert written.spec.grid.body is not None
    assert torch.equal(written.spec.grid.body, torch.from_numpy(cylinder()))
    after = json.loads(run("inspect", tmp_path / "out.h5", "--json").stdout)
    assert after["zeros_static"] == 0 and after["body_share"] == pytest.approx(count / 768)
    same = json.loads(run("inspect", wake, "--json", "--body", "zeros").stdout)
    assert "zero vectors" not in [item["topic"] for item in same["problems"]]


@pytest.mark.parametrize("body", ["zeros", ["zeros"], ["circle:1,1.2,0.45"]])
def test_a_plan_states_a_body_among_its_hints(wake: Path, body: str | list[str]) -> None:
    shares = Shares(train=0.5, valid=0.25)
    flows = prepare(DataConfig(path=str(wake), hints={"body": body}, split="time", shares=shares))
    assert flows.spec.grid.body is not None
    assert torch.equal(flows.spec.grid.body, torch.from_numpy(cylinder()))


def test_convert_cuts_frames_and_a_region_and_joins_its_own_files(tmp_path: Path) -> None:
    path = save_flow(tmp_path)
    for name, frames in (("re1.h5", ":2"), ("re2.h5", "2:")):
        cut = ("--frames", frames, "--crop", "x=0.2:0.95,rows=1:-1")
        well("convert", path, tmp_path / name, "--dt", "0.1", *cut)
    assert "2 trajectories" in well("convert", tmp_path / "re*.h5", tmp_path / "all.h5").output
    first, second = Reader(tmp_path / "all.h5")
    assert first.name.startswith("re1-") and second.name.startswith("re2-")
    with np.load(path) as data:
        wanted = torch.from_numpy(data["v"][:, 1:-1, 2:10]).float()
    assert torch.equal(torch.cat([first.read(), second.read()])[:, 1], wanted)
    assert second.local["frames"] == [2, 3] and second.time[0] == pytest.approx(0.2)
