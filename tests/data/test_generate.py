"""Generation: recipes, reproducibility, interrupts, resuming, diverged samples."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from pibert.data.convert import convert
from pibert.data.format import Reader, check, write
from pibert.data.generate import Interrupted, change, generate, recipe_hash
from pibert.data.sources import open_recordings
from pibert.fields import Trajectory
from pibert.solver.presets import PRESETS, find_preset
from pibert.solver.recipes import Diverged, Progress, Recipe, generator_of
from tests.data.helpers import make_trajectory
from tests.helpers import PATIENCE, wait_until

CALLS: list[list[int]] = []
"""The samples that ``Noise`` was asked for, in order."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Random frames; some samples may diverge."""

    case: ClassVar[str] = "noise"
    samples: int = 5
    seed: int = 0
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


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    CALLS.clear()


def test_a_set_is_written_with_its_recipe(tmp_path: Path) -> None:
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


def test_a_converted_or_incomplete_set_does_not_pass_for_the_recipe(tmp_path: Path) -> None:
    def impatient(done: float) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "noise.h5"
    with pytest.raises(Interrupted):
        generate(Noise(), path, on_progress=impatient)
    part = tmp_path / "noise.h5.parts" / "group-000000.h5"
    part.rename(path)
    shutil.rmtree(tmp_path / "noise.h5.parts")
    with pytest.raises(FileExistsError, match="holds something else"):
        generate(Noise(), path)
    generate(Noise(), path, overwrite=True)
    copy = tmp_path / "copy.h5"
    convert(open_recordings(path), copy)
    with pytest.raises(FileExistsError, match="holds something else"):
        generate(Noise(), copy)
    assert Reader(copy)[0].local["recipe"]["case"] == "noise"


def test_a_group_without_its_marker_is_made_anew(tmp_path: Path) -> None:
    parts = tmp_path / "noise.h5.parts"

    def impatient(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        generate(Noise(), tmp_path / "noise.h5", on_progress=impatient)
    (parts / "group-000000.json").unlink()
    write(parts / "group-000000.h5", [make_trajectory("wrong")])
    CALLS.clear()
    with pytest.raises(Interrupted, match="2 of 5"):
        generate(Noise(), tmp_path / "noise.h5", on_progress=impatient)
    assert CALLS == [[0, 1]]
    generate(Noise(), tmp_path / "noise.h5")
    assert "wrong" not in Reader(tmp_path / "noise.h5").names


def test_groups_of_an_unknown_recipe_are_cleared_away(tmp_path: Path) -> None:
    parts = tmp_path / "noise.h5.parts"

    def impatient(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        generate(Noise(), tmp_path / "noise.h5", on_progress=impatient)
    (parts / "recipe.json").unlink()
    generate(Noise(seed=7), tmp_path / "noise.h5")
    assert {t.local["recipe"]["seed"] for t in Reader(tmp_path / "noise.h5")} == {7}


def test_leftover_parts_of_a_complete_set_are_removed(tmp_path: Path) -> None:
    path, parts = tmp_path / "noise.h5", tmp_path / "noise.h5.parts"
    generate(Noise(), path)
    parts.mkdir()
    assert generate(Noise(), path).was_there
    assert not parts.exists()


def test_the_same_command_again_makes_nothing_anew(tmp_path: Path) -> None:
    recipe, path = Noise(), tmp_path / "noise.h5"
    generate(recipe, path)
    before = path.stat().st_mtime_ns
    again = generate(recipe, path)
    assert again.was_there and again.completed == 5
    assert path.stat().st_mtime_ns == before
    assert len(CALLS) == 3


def test_another_recipe_does_not_overwrite_a_file_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    generate(Noise(), path)
    with pytest.raises(FileExistsError, match="holds something else"):
        generate(Noise(seed=1), path)
    result = generate(Noise(seed=1), path, overwrite=True)
    assert Reader(path)[0].local["recipe_hash"] == result.recipe_hash


def test_an_interrupt_keeps_what_is_complete_and_the_same_command_goes_on(tmp_path: Path) -> None:
    recipe, path = Noise(), tmp_path / "noise.h5"

    def impatient(done: float) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(recipe, path, on_progress=impatient)
    parts = tmp_path / "noise.h5.parts"
    assert not path.exists()
    assert len(Reader(parts / "group-000001.h5")) == 2
    generate(recipe, path)
    assert CALLS == [[0, 1], [2, 3], [4]]
    assert not parts.exists()
    generate(Noise(), tmp_path / "whole.h5")
    for a, b in zip(Reader(path), Reader(tmp_path / "whole.h5"), strict=True):
        assert torch.equal(a.read(), b.read())


def test_an_interrupt_in_a_group_says_what_is_complete(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Impatient(Noise):
        def simulate(self, indices, *, device="cpu", progress=None):
            if 2 in indices:
                raise KeyboardInterrupt
            return super().simulate(indices)

    with pytest.raises(Interrupted, match="2 of 5 trajectories are complete in .*noise.h5.parts"):
        generate(Impatient(), tmp_path / "noise.h5")


def test_parts_of_another_recipe_are_never_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"

    def impatient(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(Noise(), path, on_progress=impatient)
    with pytest.raises(FileExistsError, match="parts of another recipe"):
        generate(Noise(level=2.0), path)


def test_diverged_samples_are_counted_and_never_saved(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    result = generate(Noise(diverging=(0, 1, 3)), path)
    assert result.completed == 2
    assert [d.name for d in result.diverged] == ["noise-0", "noise-1", "noise-3"]
    assert generate(Noise(diverging=(0, 1, 3)), path).diverged == result.diverged
    assert Reader(path).names == ("noise-2", "noise-4")


def test_where_every_sample_diverges_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    with pytest.raises(FloatingPointError, match="every sample diverged.*too loud"):
        generate(Noise(diverging=(0, 1, 2, 3, 4)), path)
    assert os.listdir(tmp_path) == []


def test_a_failure_before_the_first_group_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Huge(Noise):
        def simulate(self, indices, *, device="cpu", progress=None):
            raise RuntimeError("can't allocate memory: you tried to allocate 8 bytes")

    path = tmp_path / "noise.h5"
    with pytest.raises(MemoryError, match="2 samples side by side do not fit"):
        generate(Huge(), path)
    assert os.listdir(tmp_path) == []
    generate(Noise(), path)


def test_overwriting_discards_parts_of_another_recipe(tmp_path: Path) -> None:
    def impatient(done: float) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "noise.h5"
    with pytest.raises(Interrupted):
        generate(Noise(), path, on_progress=impatient)
    generate(Noise(seed=7), path, overwrite=True)
    assert {t.local["recipe"]["seed"] for t in Reader(path)} == {7}


def test_the_hash_is_that_of_the_content() -> None:
    recipe = find_preset("cylinder")
    assert recipe_hash(recipe) == recipe_hash(find_preset("cylinder", "demo"))
    codes = {recipe_hash(recipe), recipe_hash(change(recipe, {"seed": 1}))}
    codes |= {recipe_hash(change(recipe, {"scales.diameter": 0.03}))}
    assert len(codes) == 3


def test_the_hash_depends_on_the_version_and_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Hiss(Noise):
        case: ClassVar[str] = "hiss"

    codes = {recipe_hash(Noise()), recipe_hash(Hiss())}
    monkeypatch.setattr("pibert.data.generate.__version__", "99.0")
    assert len(codes | {recipe_hash(Noise())}) == 3


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("scales.diameter", "abc", "diameter must be like None, found 'abc'"),
        ("scales.viscosity", -1, "diameter and viscosity must be positive"),
        ("scheme", "bgk", "scheme must be like 'trt', found 'bgk'"),
        ("cells_per_point", 0, "cells_per_point must be positive"),
        ("burst", [0, 2], "a burst keeps"),
        ("view", ["a", 3], "view must be like"),
        ("samples.x", 3, "samples.x must be like"),
        ("frames", True, "frames must be like"),
        ("frame", 3, "no setting 'frame'; choose from: samples, seed"),
        ("frames", "many", "frames must be like 60, found 'many'"),
        ("reynolds", [100.0], r"reynolds must be like \(60.0, 200.0\)"),
        ("reynolds", [200.0, 100.0], "the lower first"),
    ],
)
def test_a_wrong_setting_is_named(key: str, value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        change(find_preset("cylinder"), {key: value})


def test_any_number_of_stream_speeds_may_be_given() -> None:
    recipe = change(find_preset("tandem"), {"reynolds": [100, 110.5, 120, 130, 140]})
    assert recipe.reynolds == (100.0, 110.5, 120.0, 130.0, 140.0)  # type: ignore[attr-defined]


def test_settings_take_whole_numbers_and_lists() -> None:
    recipe = change(find_preset("cylinder"), {"reynolds": [100, 150], "interval": 1})
    assert recipe.reynolds == (100.0, 150.0)  # type: ignore[attr-defined]
    assert isinstance(recipe.interval, float)  # type: ignore[attr-defined]


def test_every_preset_is_a_recipe_and_has_a_demo() -> None:
    for case, presets in PRESETS.items():
        assert "demo" in presets
        for recipe in presets.values():
            assert isinstance(recipe, Recipe)
            assert recipe.case == case
    assert len({recipe_hash(r) for p in PRESETS.values() for r in p.values()}) == sum(
        len(p) for p in PRESETS.values()
    )


TINY = {
    "samples": 2,
    "frames": 3,
    "warm_up": 1.0,
    "domain": [12, 8],
    "upstream": 4.0,
    "body": [7.5, 6.5, 5.0],
    "view": [16, 24],
}


def test_a_killed_generation_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """A real process, killed without warning after its first groups."""
    code = (
        "import os, signal, sys; from pibert.data.generate import change, generate; "
        "from pibert.solver.presets import find_preset; "
        "die = lambda done: done > 2 and os.kill(os.getpid(), signal.SIGKILL); "
        "recipe = change(find_preset('heat'), {'samples': 6, 'group': 1}); "
        "generate(recipe, sys.argv[1], on_progress=die)"
    )
    path, whole = tmp_path / "heat.h5", tmp_path / "whole.h5"
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "heat.h5.parts" / "group-000001.json").exists() and not path.exists()
    for target in (path, whole):
        generate(change(find_preset("heat"), {"samples": 6, "group": 1}), target)
    check(path)
    a, b = Reader(path), Reader(whole)
    assert a.names == b.names and len(a) == 6
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one.read(), other.read())


def test_two_processes_do_not_work_on_one_file(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    problems: list[str] = []

    def meddle(done: float) -> None:
        try:
            generate(Noise(), path, patience=0.0)
        except BlockingIOError as error:
            problems.append(str(error))

    generate(Noise(), path, on_progress=meddle)
    assert problems and "another process has been at work on it for 0 hours" in problems[0]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["noise.h5"]


def test_processes_that_want_one_file_wait_for_each_other(tmp_path: Path) -> None:
    """The first process dies while two others wait for it."""
    code = (
        "import os, signal, sys, time; from pibert.data.generate import change, generate; "
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
    path = tmp_path / "heat.h5"

    def start(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(path), *more],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    first = start("first")
    wait_until((tmp_path / "heat.h5.ready").exists)
    others = [start() for _ in range(2)]
    reports = []
    for other in others:  # each waits, and says so
        assert other.stderr is not None
        assert "another process is at work on these flows; waiting" in other.stderr.readline()
    first.kill()
    first.communicate()
    for other in others:
        out, _ = other.communicate(timeout=PATIENCE)
        assert other.returncode == 0
        reports.append(out.strip())
    assert sorted(reports) == ["6 False", "6 True"]
    check(path)
    assert not (tmp_path / "heat.h5.parts").exists()


def test_wakes_do_not_depend_on_how_they_are_grouped() -> None:
    recipe = change(find_preset("cylinder"), TINY)
    together = recipe.simulate([0, 1])
    assert isinstance(together[1], Trajectory)
    (alone,) = recipe.simulate([1])
    assert isinstance(alone, Trajectory)
    torch.testing.assert_close(alone.read(), together[1].read(), rtol=0, atol=1e-5)
    assert torch.equal(recipe.simulate([0, 1])[1].read(), together[1].read())  # type: ignore[union-attr]
    assert alone.parameters == together[1].parameters
    assert alone.series.keys() == {"drag", "lift"}
