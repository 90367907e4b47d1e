"""OpenFOAM's file format."""

from pathlib import Path

import numpy as np
import pytest

from pibert.data.sources.openfoam.dictionary import UNKNOWN, Dictionary, Parser


def parsed(text: str, path: Path = Path("0/U")) -> Dictionary:
    return Parser(text.encode(), path).entries()


def test_macros_find_entries_of_enclosing_dictionaries() -> None:
    found = parsed(
        """
        FoamFile { format ascii; class volVectorField; }
        speed 3;  /* not ( this ; */ inner { speed 4; deep { a 5; } }
        field uniform ($speed 0 0);   // nor this {
        patches
        {
            inlet { type fixedValue; value $field; own $:inner.deep.a; also ${speed}; }
            outlet { $inlet; type zeroGradient; missing $nothing; }
        }
        """
    )
    inlet, outlet = found["patches"]["inlet"], found["patches"]["outlet"]
    assert inlet["value"] == ["uniform", ["3", "0", "0"]]
    assert (inlet["own"], inlet["also"]) == (["5"], ["3"])
    assert outlet["type"] == ["zeroGradient"] and outlet["value"] == inlet["value"]
    assert outlet["missing"] == [UNKNOWN]


def test_quoted_keywords_are_patterns_of_which_the_last_wins() -> None:
    found = parsed('".*" { type a; } "(up|low)Wall" { type b; } inlet { type c; } "[" { type d; }')
    assert found.find("inlet")["type"] == ["c"]
    assert found.find("upWall")["type"] == ["b"]
    assert found.find("outlet")["type"] == ["a"]
    assert found.find("outlet", "inlet")["type"] == ["c"]  # a group of the patch
    assert parsed("a b;").find("c") is None


def test_code_is_not_run_and_its_value_unknown() -> None:
    found = parsed(
        """
        a #calc "1 + $b"; code #{ if (x) { y; } #}; c 1;
        d #codeStream { codeInclude #{ #include "x.H" #}; code #{ os << 1; #}; };
        #includeEtc "caseDicts/setConstraintTypes"
        e 2;
        """
    )
    assert found["a"] == found["d"] == found["code"] == [UNKNOWN]
    assert (found["c"], found["e"]) == (["1"], ["2"])


def test_included_files_of_the_case(tmp_path: Path) -> None:
    (tmp_path / "constant").mkdir()
    (tmp_path / "0").mkdir()
    (tmp_path / "constant" / "speeds").write_text("fast 9;")
    for name in ("<constant>/speeds", "$FOAM_CASE/constant/speeds", "../constant/speeds"):
        found = parsed(f'#include "{name}"\na $fast;', tmp_path / "0" / "U")
        assert found["a"] == ["9"]
    assert parsed('#includeIfPresent "nowhere"\na 1;', tmp_path / "0" / "U")["a"] == ["1"]
    (tmp_path / "loop").write_text('#include "loop"\n')
    with pytest.raises(ValueError, match="includes itself"):
        parsed('#include "loop"\n', tmp_path / "U")


def test_lists_of_numbers() -> None:
    found = parsed("a List<scalar> 3(1 2.5 -3e2); b List<vector> 2{(1 2 3)}; c List<vector> 0();")
    np.testing.assert_allclose(found["a"][0], [1, 2.5, -300])
    np.testing.assert_allclose(found["b"][0], [[1, 2, 3]] * 2)
    assert found["c"][0].shape == (0, 3)
    for wrong in ("List<scalar> 4(1 2 3);", "List<vector> 2((1 2 3) (4 5));", "List<scalar> 3(1 2"):
        with pytest.raises(ValueError):
            parsed(f"a {wrong}")
    corners, ends = Parser(b"2 ( 4(0 1 2 3) 3(4 5 6) )", Path("faces")).counted_lists()
    assert corners.tolist() == list(range(7)) and ends.tolist() == [4, 7]


@pytest.mark.parametrize(("arch", "kind"), [("", "<f8"), ("label=64;scalar=32", "<f4")])
def test_binary_lists_in_both_precisions(arch: str, kind: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    data = f'FoamFile {{ format binary; arch "LSB;{arch}"; }} a List<vector> 2('.encode()
    parser = Parser(data + values.astype(kind).tobytes() + b"); b 1;", Path("U"))
    assert parser.label == ("<i8" if arch else "<i4")
    found = parser.entries()
    np.testing.assert_allclose(found["a"][0], values)
    assert found["b"] == ["1"]
