"""OpenFOAM files that declare too much, refer to other files, or would take forever."""

import gzip
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pibert.data.readers import openfoam
from pibert.data.readers.openfoam.dictionary import Dictionary, Parser, matches
from pibert.data.readers.recordings import SourceError
from tests.lookalikes.openfoam import write_case

X, Y = np.arange(4.0), np.arange(3.0)
MESH = "constant/polyMesh"
COMPACT = "faceCompactList"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    velocities = np.random.default_rng(0).normal(size=(2, len(X) * len(Y), 3))
    write_case(tmp_path / "case", X, Y, {"1": velocities[0], "2": velocities[1]})
    return tmp_path / "case"


def edit(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def put_list(path: Path, text: str, kind: str | None = None) -> None:
    """Replace the list of a mesh file."""
    head = path.read_bytes().partition(b"// *")[0]
    if kind is not None:
        head = re.sub(rb"class\s+\w+", f"class {kind}".encode(), head)
    path.write_bytes(head + text.encode())


def refused(case: Path, file: str) -> str:
    with pytest.raises(SourceError) as found:
        openfoam.open_recordings(case)[0].read()
    assert str(case / file) in str(found.value)
    return str(found.value)


def parsed(text: str, path: Path = Path("/case/0/U")) -> Dictionary:
    return Parser(text.encode(), path).entries()


def overlapping_patches(mesh: Path) -> None:
    text = (mesh / "boundary").read_bytes()
    same = re.sub(rb"nFaces \d+; startFace \d+", b"nFaces 38; startFace 17", text)
    (mesh / "boundary").write_bytes(same)


MANY = "3000000000{0}"
BEYOND = f"56({' '.join(str(10**10 * face) for face in range(56))}) 4(0 1 2 3)"


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        (lambda mesh: put_list(mesh / "owner", MANY), "owner", "3000000000 values in"),
        (lambda mesh: put_list(mesh / "faces", f"{MANY} {MANY}", COMPACT), "faces", "3000000000"),
        (lambda mesh: put_list(mesh / "faces", BEYOND, COMPACT), "faces", "550000000000 of 4"),
        (lambda mesh: put_list(mesh / "faces", "2(4(0 1 2 3) -1(4 5 6 7))"), "faces", "no length"),
        (lambda mesh: edit(mesh / "faces", b"4(1 ", b"4(-1 "), "faces", "number -1"),
        (
            lambda mesh: edit(mesh / "owner", b"\n11\n", b"\n100000000000\n"),
            "faces",
            "with 55 faces",
        ),
        (overlapping_patches, "faces", "overlap"),
        (lambda mesh: edit(mesh / "points", b"(-0.5 ", b"(-inf "), "points", "reach inf"),
    ],
)
def test_declared_counts_of_a_mesh_are_checked(
    case: Path, damage: Callable[[Path], None], file: str, problem: str
) -> None:
    damage(case / MESH)
    assert problem in refused(case, f"{MESH}/{file}")


@pytest.mark.parametrize("count", [10**9, 10**30])
def test_a_uniform_field_has_as_many_values_as_the_mesh_has_cells(case: Path, count: int) -> None:
    head, _, rest = (case / "2/U").read_bytes().partition(b"internalField")
    tail = b"boundaryField" + rest.partition(b"boundaryField")[2]
    uniform = f"internalField nonuniform List<vector> {count}{{(1 2 3)}};\n".encode()
    (case / "2/U").write_bytes(head + uniform + tail)
    assert re.search("expected 12 x 3|declares a list of", refused(case, "2/U"))
    (case / "2/U").write_bytes(head + uniform.replace(str(count).encode(), b"12") + tail)
    frame = openfoam.open_recordings(case)[0].read(slice(1, 2))[0]
    assert (frame[0] == 1).all() and (frame[1] == 2).all()


def test_a_compressed_file_does_not_unpack_to_far_more_than_its_size(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pibert.data.readers.shared.files._ALWAYS", 1 << 20)
    path = case / "2/U"
    blanks = gzip.compress(b" " * (1 << 20))
    (case / "2/U.gz").write_bytes(gzip.compress(path.read_bytes()) + 20 * blanks)
    path.unlink()
    assert "unpack it first" in refused(case, "2/U.gz")


def test_doubling_macros_are_refused(case: Path) -> None:
    doubled = "".join(f"a{n + 1} $a{n} $a{n};" for n in range(40))
    with pytest.raises(ValueError, match="macros expand to more than"):
        parsed(f"a0 x y;{doubled}")
    merged = "".join(f"a{n + 1} {{ $a{n}; $a{n}; }}" for n in range(40))
    with pytest.raises(ValueError, match="macros expand to more than"):
        parsed(f'a0 {{ "b.*" c; }} {merged}')
    # Nested lists are shared, and never written out.
    nested = "a0 (x x);" + "".join(f"a{n + 1} ($a{n} $a{n});" for n in range(40))
    edit(case / "2/U", b"dimensions", nested.encode() + b" dimensions")
    edit(case / "2/U", b"type freestream", b"type $a40")
    assert len(openfoam.open_recordings(case)) == 1


@pytest.mark.parametrize("text", ["a " + "(" * 5000, "a {" * 5000, "FoamFile { b " + "(" * 5000])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nested more than 100 levels"):
        parsed(text)


@pytest.mark.parametrize("name", ["../../secret", "{}/secret", "<case>/../secret"])
@pytest.mark.parametrize("word", ["#include", "#includeIfPresent"])
def test_files_outside_the_case_are_not_included(case: Path, name: str, word: str) -> None:
    (case.parent / "secret").write_text("nu 1e-3;")
    line = f'{word} "{name.format(case.parent)}"\ndimensions'
    edit(case / "2/U", b"dimensions", line.encode())
    assert "outside the case" in refused(case, "2/U")


def test_included_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in range(4):
        (tmp_path / f"{number}.inc").write_text(f'#include "{number + 1}.inc"\n' * 30)
    (tmp_path / "4.inc").write_text("a b;")
    with pytest.raises(ValueError, match="more than 100 files"):
        parsed('#include "../0.inc"\n', tmp_path / "0" / "U")
    with pytest.raises(ValueError, match="includes"):
        parsed(f'#include "{"a" * 5000}"\n', tmp_path / "0" / "U")


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("[^]a]\\.x", ("b.x",), ("a.x", "].x", "bxx")),
        ("(a+)+b", ("ab", "aaab"), ("a" * 100, "b")),
        ("(a|a)*b", ("b", "aab"), ("a" * 100,)),
        (".*" * 30 + "b", ("b", "a" * 100 + "b"), ("a" * 100,)),
        ("(a{900}){900}", (), ("a" * 100,)),
        ("(a", (), ("a", "(a")),
        ("*a", (), ("a", "*a")),
    ],
)
def test_patterns_that_take_re_forever_match_whole_names(
    pattern: str, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    assert all(matches(pattern, name) for name in names)
    assert not any(matches(pattern, name) for name in others)


def test_patterns_match_as_regular_expressions_do() -> None:
    generator = random.Random(0)
    pieces = ["a", "b", "a?", "b*", "(a|b)", "(ab)*", "(a|ba?)+", "(b{1,2}){2}", "[^a]", "."]
    pieces += ["[0-9]+", "a{2}", "b{0,}", "(a|ab)(_[0-9]+)*", "(a|b?0)?", ".*"]
    for _ in range(1000):
        pattern = "".join(generator.choices(pieces, k=generator.randrange(1, 5)))
        name = "".join(generator.choices("ab0_", k=generator.randrange(8)))
        assert matches(pattern, name) == (re.fullmatch(pattern, name) is not None), (pattern, name)


@pytest.mark.parametrize(
    "pattern", ["(a|a)" * 50 + "b", "(" * 6000, "(" * 40 + "a" + "*)" * 40 + "b"]
)
def test_long_patterns_are_refused(case: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="name the patches instead"):
        matches(pattern, "a" * 100)
    edit(case / "1/U", b"left", f'"{pattern}"'.encode())
    assert "name the patches instead" in refused(case, "1/U")
