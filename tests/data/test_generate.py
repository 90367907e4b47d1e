"""Generation: recipes, reproducibility, interrupts, resuming, diverged samples."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pibert.data.convert import convert
from pibert.data.format import Reader, check, write
from pibert.data.generate import Interrupted, change, generate, recipe_hash
from pibert.data.readers import open_recordings
from pibert.fields import Trajectory
from pibert.solver.presets import find_preset
from pibert.solver.recipes import Diverged, Progress, Recipe, generator_of
from tests.data.helpers import make_trajectory
from tests.helpers import PATIENCE, refused, wait_until

CALLS: list[list[int]] = []
"""The samples that ``Noise`` was asked for, in order."""


@dataclass(frozen=True, kw_only=True)
class Noise(Recipe):
    """Random frames; some samples may diverge."""

    case = "noise"
    samples: int = 5
    group: int = 2
    diverging: tuple[int, ...] = ()
    level: float = 1.0

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        CALLS.append(list(indices))
        outcomes: list[Trajectory | Diverged] = []
        for i in indices:
            states = self.level * torch.randn(6, 2, 5, 7, generator=generator_of(self.seed, i))
            trajectory = make_trajectory(f"noise-{i}", states=states)
            outcomes.append(
                Diverged(f"noise-{i}", "too loud") if i in self.diverging else trajectory
            )
        return outcomes


def impatient(done: float) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    CALLS.clear()


def test_a_set_is_written_once_with_its_recipe(tmp_path: Path) -> None:
    recipe, path = Noise(), tmp_path / "noise.h5"
    seen: list[float] = []
    result = generate(recipe, path, on_progress=seen.append)
    assert (result.completed, result.diverged, result.was_there) == (5, (), False)
    assert CALLS == [[0, 1], [2, 3], [4]]
    assert seen == [2.0, 4.0, 5.0]
    check(path)
    reader = Reader(path)
    assert reader.names == tuple(f"noise-{i}" for i in range(5))
    assert reader[0].local["recipe_hash"] == result.recipe_hash
    assert reader[0].local["recipe"]["level"] == 1.0
    assert os.listdir(tmp_path) == ["noise.h5"]
    (tmp_path / "noise.h5.parts").mkdir()  # left over
    again = generate(recipe, path)
    assert again.was_there and again.completed == 5 and len(CALLS) == 3
    assert os.listdir(tmp_path) == ["noise.h5"]


def test_a_converted_or_incomplete_set_does_not_pass_for_the_recipe(tmp_path: Path) -> None:
    path, copy = tmp_path / "noise.h5", tmp_path / "copy.h5"
    with pytest.raises(Interrupted):
        generate(Noise(), path, on_progress=impatient)
    (tmp_path / "noise.h5.parts" / "group-000000.h5").rename(path)
    shutil.rmtree(tmp_path / "noise.h5.parts")
    with pytest.raises(FileExistsError, match="is not of this recipe"):
        generate(Noise(), path)
    generate(Noise(), path, overwrite=True)
    convert(open_recordings(path), copy)
    with pytest.raises(FileExistsError, match="is not of this recipe"):
        generate(Noise(), copy)


def test_groups_of_unknown_state_are_simulated_again(tmp_path: Path) -> None:
    path, parts = tmp_path / "noise.h5", tmp_path / "noise.h5.parts"
    with pytest.raises(Interrupted, match="2 of 5 .*noise.h5.parts"):
        generate(Noise(), path, on_progress=impatient)
    with pytest.raises(FileExistsError, match="groups of another recipe"):
        generate(Noise(level=2.0), path)
    # A group without its marker is not complete.
    (parts / "group-000000.json").unlink()
    write(parts / "group-000000.h5", [make_trajectory("wrong")])
    CALLS.clear()
    with pytest.raises(Interrupted, match="2 of 5"):
        generate(Noise(), path, on_progress=impatient)
    assert CALLS == [[0, 1]] and Reader(parts / "group-000000.h5").names[0] == "noise-0"
    (parts / "recipe.json").unlink()
    with pytest.raises(Interrupted):
        generate(Noise(seed=7), path, on_progress=impatient)
    generate(Noise(seed=8), path, overwrite=True)
    assert {t.local["recipe"]["seed"] for t in Reader(path)} == {8}


def test_two_processes_do_not_work_on_one_file(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    problems: list[str] = []

    def meddle(done: float) -> None:
        try:
            generate(Noise(), path, patience=0.0)
        except BlockingIOError as error:
            problems.append(str(error))

    generate(Noise(), path, on_progress=meddle)
    assert problems and "0 hours" in problems[0]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["noise.h5"]


def test_an_interrupted_generation_resumes_with_identical_results(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Impatient(Noise):
        def simulate(self, indices, *, device="cpu", progress=None):
            if 4 in indices and len(CALLS) == 2:
                raise KeyboardInterrupt
            return super().simulate(indices)

    path, parts = tmp_path / "noise.h5", tmp_path / "noise.h5.parts"
    with pytest.raises(Interrupted, match="4 of 5"):
        generate(Impatient(), path)
    assert not path.exists() and len(Reader(parts / "group-000001.h5")) == 2
    CALLS.append([])
    generate(Impatient(), path)
    assert CALLS == [[0, 1], [2, 3], [], [4]]
    assert not parts.exists()
    generate(Noise(), tmp_path / "whole.h5")
    for a, b in zip(Reader(path), Reader(tmp_path / "whole.h5"), strict=True):
        assert torch.equal(a.read(), b.read())


def test_diverged_samples_are_counted_and_never_saved(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    result = generate(Noise(diverging=(0, 1, 3)), path)
    assert result.completed == 2
    assert [d.name for d in result.diverged] == ["noise-0", "noise-1", "noise-3"]
    assert generate(Noise(diverging=(0, 1, 3)), path).diverged == result.diverged
    assert Reader(path).names == ("noise-2", "noise-4")
    with pytest.raises(FloatingPointError, match="every sample diverged.*too loud"):
        generate(Noise(diverging=(0, 1, 2, 3, 4)), tmp_path / "none.h5")
    assert os.listdir(tmp_path) == ["noise.h5"]


def test_a_failure_before_the_first_group_leaves_no_files(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Huge(Noise):
        def simulate(self, indices, *, device="cpu", progress=None):
            raise RuntimeError("can't allocate memory: you tried to allocate 8 bytes")

    path = tmp_path / "noise.h5"
    with refused("2 samples", error=MemoryError):
        generate(Huge(), path)
    assert os.listdir(tmp_path) == []
    generate(Noise(), path)


def test_the_hash_depends_on_content_version_and_case(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Hiss(Noise):
        case = "hiss"

    recipe = find_preset("cylinder")
    assert recipe_hash(recipe) == recipe_hash(find_preset("cylinder", "demo"))
    codes = {recipe_hash(Noise()), recipe_hash(Hiss()), recipe_hash(Noise(seed=1))}
    codes |= {recipe_hash(recipe), recipe_hash(change(recipe, {"scales.diameter": 0.03}))}
    monkeypatch.setattr("pibert.data.generate.__version__", "99.0")
    assert len(codes | {recipe_hash(Noise())}) == 6


def test_a_waiting_process_resumes_a_killed_one_with_identical_results(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, time; from pibert.data.generate import change, generate; "
        "from pibert.solver.presets import find_preset; "
        "path, first = sys.argv[1], len(sys.argv) > 2\n"
        "def slow(done):\n"
        "    if first and done > 2:\n"
        "        open(path + '.ready', 'w').close()\n"
        "        time.sleep(600)\n"
        "recipe = change(find_preset('heat'), {'samples': 6, 'group': 1})\n"
        "done = generate(recipe, path, on_progress=slow)\n"
        "print(done.completed, done.was_there)"
    )
    path, whole = tmp_path / "heat.h5", tmp_path / "whole.h5"

    def start(*more: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-c", code, str(path), *more], subprocess.PIPE
        return subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdout=pipe, stderr=pipe, text=True
        )

    first = start("first")
    wait_until((tmp_path / "heat.h5.ready").exists)
    assert (tmp_path / "heat.h5.parts" / "group-000001.json").exists() and not path.exists()
    other = start()
    assert other.stderr is not None
    assert "another process" in other.stderr.readline()
    first.kill()
    first.communicate()
    out, _ = other.communicate(timeout=PATIENCE)
    assert other.returncode == 0 and out.split() == ["6", "False"]
    assert not (tmp_path / "heat.h5.parts").exists()
    check(path)
    generate(change(find_preset("heat"), {"samples": 6, "group": 1}), whole)
    for one, two in zip(Reader(path), Reader(whole), strict=True):
        assert torch.equal(one.read(), two.read())
