"""The command line: what it prints, what it leaves behind, and how it says no."""

import errno
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from pibert.cli import app
from pibert.data.download import size_text
from pibert.data.format import Reader, check
from pibert.data.sources import open_recordings
from tests.helpers import PATIENCE, wait_until
from tests.lookalikes.piv import sample, write_openpiv
from tests.lookalikes.realpdebench import TANDEMS, write_root

ROOT = Path(__file__).parents[1]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments: str | Path) -> str:
    """What the command says when it says no: in one line, with exit code 2."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    return result.stderr


def test_info_names_every_preset_with_its_size() -> None:
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0, result.output
    assert "1,560,232" in result.output
    for word in ("torch", "base", "large", "1,054,082", "21,250", "persistence", "mean-advection"):
        assert word in result.output


def save_flow(folder: Path) -> Path:
    """A shear with a vortex as .npz, without a word on time and units."""
    y, x = np.mgrid[0:16, 0:24] * 0.1
    u = np.stack([1 + y + 0.1 * frame * np.sin(3 * y) for frame in range(4)])
    v = np.stack([0.2 * np.sin(3 * x + 0.1 * frame) for frame in range(4)])
    path = folder / "shear.flow.npz"
    np.savez(path, u=u, v=v, x=x[0], y=y[:, 0])
    return path


def test_inspect_says_what_a_file_holds_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "shear.png"
    result = CliRunner().invoke(
        app, ["inspect", str(save_flow(tmp_path)), "--picture", str(picture)]
    )
    assert result.exit_code == 0, result.output
    for words in ("16 x 24", "dx 0.1", "dt not stated", "no time step", "What to do"):
        assert words in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_inspect_draws_into_outputs_under_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["inspect", save_flow(tmp_path).name]).exit_code == 0
    assert (tmp_path / "outputs" / "shear.png").is_file()


def test_inspect_prints_json_that_hints_have_changed(tmp_path: Path) -> None:
    arguments = ["--json", "--dt", "0.5", "--unit", "m/s", "--length-unit", "m"]
    arguments += ["--channels", "u=v,v=u", "--parameter", "Re=100", "--dx", "0.2"]
    arguments += ["--override-units"]
    result = CliRunner().invoke(app, ["inspect", str(save_flow(tmp_path)), *arguments])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["dt"] == 0.5 and facts["length_unit"] == "m" and facts["spacing"][0] == 0.2
    assert facts["parameters"] == {"Re": [100.0, 100.0]}
    named = {channel["name"]: channel for channel in facts["channels"]}
    assert named["v"]["low"] == pytest.approx(1.0) and named["u"]["unit"] == "m/s"


def test_a_table_without_a_field_is_shown_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "drag.csv"
    path.write_text("t,Cd\n0.5,1.25\n1.5,1.75\n2.5,1.5\n")
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    for words in ("3 rows", "Cd", "1.25", "1.75", "no field"):
        assert words in result.output
    result = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    assert json.loads(result.stdout)["columns"]["Cd"] == [1.25, 1.75]


def test_convert_makes_a_native_file(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    arguments = ["--dt", "0.1", "--stride", "2", "--keep", "v", "--size", "8x12"]
    result = CliRunner().invoke(app, ["convert", str(save_flow(tmp_path)), str(out), *arguments])
    assert result.exit_code == 0, result.output
    check(out)
    (trajectory,) = Reader(out)
    assert trajectory.states.shape == (2, 1, 8, 12)
    assert trajectory.spec.channels == ("v",) and trajectory.spec.dt == pytest.approx(0.2)
    assert trajectory.local["file"] == "shear.flow.npz"


def test_convert_states_family_sides_and_parameters_also_of_its_own_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first.h5", tmp_path / "second.h5"
    result = run("convert", save_flow(tmp_path), first, "--dt", "0.1")
    assert "note: family not stated; assuming incompressible flow" in result.stdout
    stated = ("--parameter", "Re=3000", "--sides", "periodic", "--family", "incompressible")
    assert run("convert", first, second, *stated).exit_code == 0
    (trajectory,) = Reader(second)
    assert trajectory.parameters == {"Re": 3000.0} and trajectory.spec.grid.periodic_x
    assert trajectory.spec.family == "incompressible" and "family" not in trajectory.local
    shown = run("inspect", second, "--picture", tmp_path / "a.png").stdout
    assert re.search(r"sides +periodic", shown) and re.search(r"family +incompressible", shown)
    other = tmp_path / "other.h5"
    again = ("convert", second, other, "--parameter", "Re=100")
    assert "Re is 3000 in the file, but you state 100" in refusal(*again)
    assert not other.exists()
    replaced = run(*again, "--override-metadata")
    assert replaced.exit_code == 0 and "Re 3000 -> 100" in replaced.stderr
    assert Reader(other)[0].parameters == {"Re": 100.0}
    assert "--family takes one of incompressible" in refusal(*again, "--family", "stokes")
    assert "sides: expected one of periodic, wall" in refusal(*again, "--sides", "x=perodic")


def test_inspect_of_files_that_do_not_belong_together_says_why(tmp_path: Path) -> None:
    for number in (0, 4):
        rows = [f"{x + number},{y},1,0" for y in range(4) for x in range(4)]
        (tmp_path / f"ns_{number}.csv").write_text("x,y,u,v\n" + "\n".join(rows))
    for path in (tmp_path, tmp_path / "ns_*.csv"):
        assert "expected the points of ns_0.csv, found others" in refusal("inspect", path)


def test_convert_cuts_frames_and_a_region_and_joins_its_own_files(tmp_path: Path) -> None:
    path = save_flow(tmp_path)
    for name, frames in (("re1.h5", ":2"), ("re2.h5", "2:")):
        cut = ["--frames", frames, "--crop", "x=0.2:0.95,rows=1:-1"]
        result = run("convert", path, tmp_path / name, "--dt", "0.1", *cut)
        assert result.exit_code == 0, result.output
        assert "1 trajectory," in result.output
    result = run("convert", tmp_path / "re*.h5", tmp_path / "all.h5")
    assert result.exit_code == 0 and "2 trajectories" in result.output, result.output
    first, second = Reader(tmp_path / "all.h5")
    assert first.name.startswith("re1-") and second.name.startswith("re2-")
    with np.load(path) as data:
        wanted = torch.from_numpy(data["v"][:, 1:-1, 2:10]).float()
    assert torch.equal(torch.cat([first.read(), second.read()])[:, 1], wanted)
    assert second.local["frames"] == [2, 3] and second.time[0] == pytest.approx(0.2)


def test_a_unit_that_looks_mistyped_is_noted_and_other_spellings_are_known(tmp_path: Path) -> None:
    path = save_flow(tmp_path)
    result = run("convert", path, tmp_path / "a.h5", "--unit", "ms", "--length-unit", "mm")
    assert result.exit_code == 0
    assert "note: --unit: 'ms' is no known unit of velocity (did you mean m/s?)" in result.stderr
    result = run("convert", path, tmp_path / "b.h5", "--unit", "m/sec", "--length-unit", "mm")
    assert result.exit_code == 0 and result.stderr == ""
    (trajectory,) = Reader(tmp_path / "b.h5")
    assert trajectory.spec.units == ("m/s", "m/s") and trajectory.length_unit == "m"
    result = run("convert", path, tmp_path / "c.h5", "--unit", "U", "--length-unit", "D")
    assert result.exit_code == 0 and result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "absent.npz"], "absent.npz: there is no such file"),
        (["inspect", "notes.md"], "notes.md: a file of no known kind"),
        (["inspect", "broken.npz"], "broken.npz"),
        (["inspect", "shear.flow.npz", "--kind", "numpy"], "--kind takes one of"),
        (["inspect", "shear.flow.npz", "--dt", "-1"], "--dt takes a positive number, found -1"),
        (["inspect", "shear.flow.npz", "--parameter", "Re"], "--parameter takes NAME=NUMBER"),
        (["inspect", "shear.flow.npz", "--parameter", "Re=x"], "--parameter takes NAME=NUMBER"),
        (["inspect", "shear.flow.npz", "--channels", "u"], "--channels takes NAME=VALUE"),
        (["inspect", "shear.flow.npz", "--picture", "x.gif"], "pictures are written as .png"),
        (["convert", "shear.flow.npz", "out.h5", "--size", "8"], "--size takes ROWSxCOLUMNS"),
        (["convert", "shear.flow.npz", "out.h5", "--keep", "w"], "unknown channels ['w']"),
        (["convert", "shear.flow.npz", "out.csv"], "out.csv: expected a name that ends in .h5"),
        (
            ["convert", "shear.flow.npz", "out.h5", "--frames", "9"],
            "--frames takes a range",
        ),
        (["convert", "shear.flow.npz", "out.h5", "--frames", "9:"], "has 4 frames: none of them"),
        (["convert", "shear.flow.npz", "out.h5", "--crop", "z=0:1"], "--crop knows no z"),
        (["convert", "shear.flow.npz", "out.h5", "--crop", "x=a:1"], "--crop takes a range of"),
        (["convert", "shear.flow.npz", "out.h5", "--crop", "x=0:2,x=1:3"], "with each name once"),
        (["convert", "shear.flow.npz", "out.h5", "--crop", ""], "--crop takes NAME=FROM:TO,..."),
        (["convert", "shear.flow.npz", "out.h5", "--crop", "x=9:"], "keeps 0 of 24 points along x"),
        (["convert", "shear.flow.npz", "shear.flow.npz"], "is the input or a part of it"),
        (["convert", "shear.flow.npz", "notes.md"], "notes.md exists; add --overwrite"),
        (["convert", "drag.csv", "out.h5"], "drag.csv"),
    ],
)
def test_inspect_and_convert_say_no_in_one_line_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_flow(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "broken.npz").write_bytes((tmp_path / "shear.flow.npz").read_bytes()[:900])
    (tmp_path / "drag.csv").write_text("t,Cd\n0.5,1.25\n1.5,1.75\n")
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_missing_extra_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise ImportError("reading MATLAB files needs scipy: pip install 'pibert-cfd[io]'")

    monkeypatch.setattr("pibert.data.sources.identify", without)
    result = CliRunner().invoke(app, ["inspect", "x.mat"])
    assert result.exit_code == 2
    assert result.stderr == (
        "error: reading MATLAB files needs scipy: pip install 'pibert-cfd[io]'\n"
    )


def test_the_package_can_be_run_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pibert.cli", "generate", "--device", "tpu", "heat"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert found.returncode == 2
    assert found.stderr == "error: there is no device 'tpu'; choose from: auto, cpu\n"


# Generation

PIV_FILES = Path(__file__).parent / "data" / "sources" / "files"
TINY = ["--samples", "2", "--set", "frames=3", "--set", "points=16"]


def test_generate_without_a_case_lists_the_choices() -> None:
    page = run("generate").output
    assert "cylinder" in page and "realpdebench-like" in page


def test_generate_writes_once(tmp_path: Path) -> None:
    out = tmp_path / "cavity [1].h5"
    result = run("generate", "cavity", *TINY, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"Wrote 2 trajectories to {out}" in result.output
    check(out)
    assert "holds this recipe already" in run("generate", "cavity", *TINY, "--out", out).output
    assert "holds something else" in refusal("generate", "heat", "--out", out)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_generate_names_what_is_wrong(tmp_path: Path) -> None:
    assert "expected a name that ends in .h5" in refusal("generate", "heat", "--out", "a.nc")
    assert "unknown case 'hat'" in refusal("generate", "hat")
    assert "no setting 'sise'" in refusal("generate", "heat", "--set", "sise=3")
    assert "expected KEY=VALUE" in refusal("generate", "heat", "--set", "frames")
    assert f"{tmp_path} is a folder" in refusal("generate", "heat", "--out", tmp_path)
    assert "/proc/x.h5" in refusal("generate", "heat", "--samples", "1", "--out", "/proc/x.h5")
    assert "there is no folder" in refusal("generate", "heat", "--out", tmp_path / "a" / "b.h5")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_generation_says_what_is_there_and_goes_on(tmp_path: Path) -> None:
    """A real process and a real Ctrl-C."""
    command = [sys.executable, "-m", "pibert.cli", "generate", "cavity", "--out", "flow.h5"]
    command += ["--set", "group=1", "--set", "points=32", "--samples", "1000"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background ignore interrupts, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    parts = tmp_path / "flow.h5.parts"
    try:
        wait_until((parts / "group-000000.json").exists)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert said.startswith("interrupted: ") and "the same command goes on" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "flow.h5").exists()
    # What is complete can be used.
    assert run("convert", parts / "group-000000.h5", tmp_path / "part.h5").exit_code == 0


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
    planned = run(*arguments, "--dry-run")
    assert planned.exit_code == 0, planned.output
    wanted = {name: data for name, data in contents(hub).items() if "numerical" not in name}
    total = size_text(sum(map(len, wanted.values())))
    for words in ("cylinder/hf_dataset/real", "fsi/hf_dataset/real", "total", total, "left"):
        assert words in planned.output
    assert not to.exists()
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert contents(to) == wanted
    line = f"pibert inspect '{to}' --scenario fsi --type real"
    assert line in result.output
    shown = run(*shlex.split(line)[1:], "--json")
    assert json.loads(shown.stdout)["kind"] == "realpdebench"
    again = run(*arguments)
    assert again.exit_code == 0 and f"0 B │ {total:>13} │" in again.output


def test_small_files_alone_are_not_to_be_inspected(hub: Path, tmp_path: Path) -> None:
    arguments = ("download", "realpdebench", "fsi", "--to", tmp_path, "--from", hub)
    result = run(*arguments, "--what", "metadata", "--kind", "numerical")
    assert result.exit_code == 0, result.output
    assert "--what fields" in result.output and "pibert inspect" not in result.output
    assert "fsi/remain_params_numerical.json" in contents(tmp_path)
    assert not [name for name in contents(tmp_path) if "arrow" in name or "real.json" in name]


def test_an_interrupted_download_says_so_and_goes_on(
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
    assert result.stderr == "interrupted: the same command goes on where it stopped\n"
    begun = [name for name in contents(tmp_path) if name.endswith(".partial")]
    assert len(begun) == 1
    assert run(*arguments).exit_code == 0
    wanted = [name for name in contents(hub) if "fsi" in name and "numerical" not in name]
    assert sorted(contents(tmp_path)) == sorted([*wanted, "version.json"])


def test_a_download_that_cannot_be_made_is_told(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("download", "realpdebench")
    source = ("--from", hub)
    assert "no 'foil'; there are" in refusal(*start, "foil", "--to", tmp_path, *source)
    assert "no such folder" in refusal(*start, "fsi", "--to", tmp_path, "--from", tmp_path / "a")
    assert "--kind takes one of" in refusal(*start, "fsi", "--to", tmp_path, "--kind", "fake")
    assert "--what takes one of" in refusal(*start, "fsi", "--to", tmp_path, "--what", "some")
    assert "not for a folder" in refusal(
        *start, "fsi", "--to", tmp_path, *source, "--revision", "x"
    )
    assert "/proc/x" in refusal(*start, "fsi", "--to", "/proc/x", *source)
    one = run(*start, "fsi", "--to", tmp_path, *source, "--dry-run")
    assert one.exit_code == 0
    size = sum(len(data) for name, data in contents(hub).items() if "fsi" in name) // 2
    monkeypatch.setattr(
        "pibert.data.download.shutil.disk_usage", lambda path: SimpleNamespace(free=size + 50_000)
    )
    # There is room for either scenario, but not for both.
    assert "make room" in refusal(*start, "cylinder", "fsi", "--to", tmp_path, *source)
    assert list(tmp_path.iterdir()) == []


# Options of readers, patterns, other layouts


def test_a_root_with_several_sets_asks_for_a_choice(hub: Path, tmp_path: Path) -> None:
    message = refusal("inspect", hub)
    assert "more than one set" in message and "cylinder numerical" in message
    chosen = ("--scenario", "cylinder", "--type", "numerical")
    result = run("inspect", hub, *chosen, "--json")
    assert json.loads(result.stdout)["shape"] == [32, 64]
    shown = run("inspect", hub, *chosen, "--picture", tmp_path / "x.png").output
    # What the source states does not hide what was found.
    for words in ("kind            realpdebench", "stated kind     simulated", "32 x 64 (rows"):
        assert words in shown
    out = tmp_path / "fsi.h5"
    arguments = ("--scenario", "fsi", "--type", "real", "--max-frames", "2")
    assert run("convert", hub, out, *arguments).exit_code == 0
    assert [t.name for t in Reader(out)] == list(TANDEMS)
    assert "unknown scenario 'foul'" in refusal("inspect", hub, "--scenario", "foul")
    assert "--type takes one of real, numerical" in refusal("inspect", hub, "--type", "measured")


def test_options_of_another_reader_are_refused(tmp_path: Path) -> None:
    flow, out = save_flow(tmp_path), tmp_path / "out.h5"
    message = refusal("convert", flow, out, "--scenario", "fsi", "--type", "real")
    assert "only RealPDEBench takes --scenario and --type; this is of kind 'arrays'" in message
    with pytest.raises(ValueError, match="'cfdbench' has no option box; it has: until_converged"):
        open_recordings(tmp_path, "cfdbench", options={"box": (0, 1, 0, 1)})


def test_a_pattern_names_a_series_of_vector_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(9, 12):
        write_openpiv(tmp_path / f"B{number}.txt", sample(), flags=np.zeros((4, 6)))
    write_openpiv(tmp_path / "C1.txt", sample(5, 5), flags=np.zeros((5, 5)))
    for _ in range(2):  # the second time the target is there
        result = run("convert", "B*.txt", "out.h5", "--dt", "0.5", "--overwrite")
        assert result.exit_code == 0, result.output
    (trajectory,) = Reader(Path("out.h5"))
    assert trajectory.states.shape == (3, 2, 4, 6)
    assert run("inspect", "B*.txt").exit_code == 0
    assert [path.name for path in Path("outputs").iterdir()] == ["B.png"]
    assert "no such file that fits" in refusal("inspect", "D*.txt")
    save_flow(tmp_path)
    assert "no PIV vectors" in refusal("inspect", "*.npz")


def test_pixels_are_calibrated_or_refused(tmp_path: Path) -> None:
    source, out = PIV_FILES / "tsi_pixels.vec", tmp_path / "out.h5"
    message = refusal("convert", source, out, "--unit", "m/s", "--dx", "1.6", "--dy", "1.6")
    assert "--dx 1.6 was given, but the data state a spacing of 32 px along x" in message
    message = refusal("convert", source, out, "--unit", "m/s")
    assert "--scale 0.05mm/px" in message and "--override-units" in message
    assert not out.exists()
    result = run("convert", source, out, "--scale", "0.05 mm/px", "--dt", "0.5")
    assert result.exit_code == 0, result.output
    assert "a pulse delay of 55 ms (header)" in " ".join(result.output.split())
    (trajectory,) = Reader(out)
    assert trajectory.spec.units == ("m/s", "m/s") and trajectory.length_unit == "m"
    assert trajectory.spec.grid.dx == pytest.approx(32 * 5e-5)
    # The last vector of the file lies at the lower right: u = -1.752557 px.
    assert trajectory.read()[0, 0, 0, -1].item() == pytest.approx(
        -1.752557 * 5e-5 / 0.055, rel=1e-4
    )
    assert trajectory.local["hints"]["scale"] == "0.05 mm/px"


def test_the_advice_of_inspect_on_pixels_leads_to_metres_per_second(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for number in (1, 2):
        text = (PIV_FILES / "openpiv.txt").read_text()
        (folder / f"B{number}.txt").write_text(text)
    facts = json.loads(run("inspect", folder, "--json").stdout)
    (advice,) = (p["advice"] for p in facts["problems"] if p["topic"] == "pixels")
    command = advice.rpartition(": pibert ")[2].replace("LENGTH", "0.05mm").replace("TIME", "1ms")
    assert command == f"convert {folder} OUT.h5 --scale 0.05mm/px --pulse-delay 1ms"
    out = tmp_path / "out.h5"
    assert run(*command.replace("OUT.h5", str(out)).split()).exit_code == 0
    assert Reader(out)[0].read()[0, 0].median().item() == pytest.approx(3 * 0.05, rel=0.05)
    # What was called m/s instead is flagged, also in the file that was made of it.
    wrong = ("--unit", "m/s", "--length-unit", "mm", "--dt", "1")
    assert run("convert", folder, tmp_path / "wrong.h5", *wrong).exit_code == 0
    for arguments in ((folder, *wrong), (tmp_path / "wrong.h5",)):
        facts = json.loads(run("inspect", *arguments, "--json").stdout)
        (found,) = (p for p in facts["problems"] if p["topic"] == "pixels")
        assert found["serious"] and "16 x 16 apart" in found["why"]
    for arguments in ((out,), (PIV_FILES / "tsi_calibrated.vec",)):
        facts = json.loads(run("inspect", *arguments, "--json").stdout)
        assert not any(p["topic"] == "pixels" for p in facts["problems"])


def test_channels_that_are_not_there_are_refused_for_piv_too(tmp_path: Path) -> None:
    message = refusal("convert", PIV_FILES / "openpiv.txt", tmp_path / "a.h5", "--channels", "u=no")
    assert "no column 'no'; there are: x, y, u, v, flags, mask" in message


@pytest.fixture(scope="module")
def cavities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("flows") / "cavities.h5"
    assert run("generate", "cavity", *TINY, "--out", out).exit_code == 0
    return out


def test_cavities_can_be_written_as_cases_of_cfdbench(cavities: Path, tmp_path: Path) -> None:
    arguments = ("convert", cavities, tmp_path / "new", "--to", "cfdbench", "--max-frames", "2")
    result = run(*arguments, "--problem", "cavity", "--subset", "bc")
    assert result.exit_code == 0, result.output
    recordings = open_recordings(tmp_path / "new")
    assert recordings.kind == "cfdbench"
    assert recordings.names == ("cavity_bc_case0000", "cavity_bc_case0001")
    assert recordings[1].states.shape == (2, 2, 64, 64)
    before = contents(tmp_path)
    assert "exists; remove it" in refusal(*arguments, "--problem", "cavity", "--subset", "bc")
    assert "needs --problem, one of cavity" in refusal(*arguments)
    assert "--problem takes one of" in refusal(*arguments, "--problem", "foil")
    assert "--keep and --size" in refusal(*arguments, "--problem", "tube", "--size", "8x8")
    assert "expected a body" in refusal(*arguments, "--problem", "cylinder")
    assert "goes with --to cfdbench" in refusal("convert", cavities, "x.h5", "--problem", "dam")
    assert "--to takes one of" in refusal("convert", cavities, "x.h5", "--to", "vtk")
    assert contents(tmp_path) == before and not (tmp_path / "new" / "cylinder").exists()


def test_cases_are_written_all_or_none(
    cavities: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[Path] = []

    def rename(self: Path, target: Path) -> None:
        if renamed:
            raise OSError(errno.ENOSPC, "No space left on device")
        renamed.append(target)
        os.rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    arguments = ("--to", "cfdbench", "--problem", "cavity")
    message = refusal("convert", cavities, tmp_path / "a" / "b", *arguments)
    assert "case0001: cannot write: No space left" in message
    assert len(renamed) == 1 and list(tmp_path.iterdir()) == []


def test_clean_fields_can_be_measured_as_they_are_converted(cavities: Path, tmp_path: Path) -> None:
    out = tmp_path / "piv.h5"
    result = run(
        "convert", cavities, out, "--piv", "window=1,noise=0,outliers=0,missing=0.25,seed=3"
    )
    assert result.exit_code == 0, result.output
    clean, measured = Reader(cavities)[0], Reader(out)[0]
    assert measured.local["measurement"]["seed"] == 3
    known = measured.known()
    assert float(known.double().mean()) == pytest.approx(0.75, abs=0.06)
    assert measured.spec.channels == ("u", "v")
    velocities = clean.read(channels=(0, 1)).movedim(1, -1)
    assert torch.equal(measured.read().movedim(1, -1)[known], velocities[known])
    assert "--piv knows no fog; choose from: window, noise" in refusal(
        "convert", cavities, out, "--piv", "fog=1"
    )
    assert "whole number as window" in refusal("convert", cavities, out, "--piv", "window=1.5")
    assert "--piv takes NAME=NUMBER" in refusal("convert", cavities, out, "--piv", "window")
    assert "share from 0 to 1" in refusal("convert", cavities, out, "--piv", "missing=2")


def test_rows_are_turned_and_units_made_one_as_asked(tmp_path: Path) -> None:
    path, out = save_flow(tmp_path), tmp_path / "out.h5"
    arguments = ("convert", path, out, "--length-unit", "mm", "--unit", "m/s", "--flip", "y")
    result = run(*arguments)
    assert result.exit_code == 0 and "note: units: " in result.output, result.output
    flow = Reader(out)[0]
    assert flow.spec.grid.dx == pytest.approx(1e-4) and flow.length_unit == "m"
    u = torch.from_numpy(np.load(path)["u"]).float()
    assert torch.equal(flow.read(channels=(0,))[:, 0], u.flip(1))
    assert "exists; add --overwrite" in refusal(*arguments, "--keep-units")
    assert run(*arguments, "--keep-units", "--overwrite").exit_code == 0
    assert Reader(out)[0].spec.grid.dx == pytest.approx(0.1)


# Bad input


def test_files_that_are_cut_or_foreign_are_named(cavities: Path, tmp_path: Path) -> None:
    cut, foreign = tmp_path / "cut.h5", tmp_path / "foreign.h5"
    cut.write_bytes(cavities.read_bytes()[:20_000])
    foreign.write_bytes(b"GIF89a" + bytes(1000))
    out = tmp_path / "out.h5"
    for path in (cut, foreign, tmp_path / "absent.h5"):
        for arguments in (("inspect", path), ("convert", path, out)):
            assert str(path) in refusal(*arguments)
    assert "cut.h5: the file is truncated: get a new copy" in refusal("inspect", cut)
    assert not out.exists()


def test_values_that_are_not_finite_become_missing_points(tmp_path: Path) -> None:
    path, out = save_flow(tmp_path), tmp_path / "out.h5"
    arrays = dict(np.load(path))
    arrays["u"][1, 3, 4] = np.nan
    np.savez(path, **arrays)
    assert json.loads(run("inspect", path, "--json").stdout)["missing_share"] > 0
    assert run("convert", path, out).exit_code == 0
    check(out)
    known = Reader(out)[0].known()
    assert int((~known).sum()) == 1 and not known[1, 3, 4]


def test_targets_that_cannot_be_written_are_named(cavities: Path, tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder; name a file" in refusal("convert", cavities, tmp_path)
    assert "/proc/x.h5: cannot write" in refusal("convert", cavities, "/proc/x.h5")
    assert "/proc" in refusal("inspect", cavities, "--picture", "/proc/x/x.png")
    locked = tmp_path / "locked.h5"
    locked.write_bytes(b"mine")
    locked.chmod(0o444)
    assert "locked.h5 is read-only" in refusal("convert", cavities, locked, "--overwrite")
    assert locked.read_bytes() == b"mine"


def test_a_full_disk_leaves_nothing_behind(cavities: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out, cases = tmp_path / "out.h5", tmp_path / "cases"
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        native = refusal("convert", cavities, out)
        other = refusal("convert", cavities, cases, "--to", "cfdbench", "--problem", "cavity")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert f"{out}: cannot write: File too large; nothing was changed" in native
    assert "case0000: cannot write: " in other
    assert list(tmp_path.iterdir()) == []
