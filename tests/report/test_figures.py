"""Pictures: they are written whole, have the size that the flow's view asks for, and say no."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.report.figures import DPI, ERRORS, SIGNED, VALUES, Layer, compare_fields, show


def wide_spec(body: bool = False) -> FieldSpec:
    solid = torch.zeros(8, 20, dtype=torch.bool)
    solid[3:5, 4:6] = True
    grid = Grid((8, 20), dx=0.1, dy=0.1, body=solid if body else None, origin=(-0.4, 0.0))
    return FieldSpec(channels=("p", "v", "u"), units=("Pa", "m/s", "m/s"), grid=grid)


def flow(spec: FieldSpec) -> Tensor:
    x, y = spec.grid.coordinates()
    return torch.stack((x * y, torch.sin(3 * x), 1 + y))


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_a_picture_is_written_whole_into_a_new_folder(tmp_path: Path) -> None:
    spec = wide_spec()
    path = compare_fields(
        tmp_path / "new" / "flow.png", flow(spec), flow(spec) * 1.1, spec, title="a flow"
    )
    # Three panels of 2.6 x 1.04 inches in a row, four rows, and room for bars and labels.
    expected = (3 * 2.6 + 2.4) * DPI, (4 * (1.04 + 0.3) + 0.7) * DPI
    assert png_size(path) == pytest.approx(expected, abs=1)
    assert os.listdir(path.parent) == ["flow.png"]


def test_a_tall_view_gives_a_tall_picture(tmp_path: Path) -> None:
    spec = FieldSpec(grid=Grid((10, 10), dx=0.1, dy=0.2))
    field = torch.randn(2, 10, 10)
    width, height = png_size(compare_fields(tmp_path / "flow.png", field, field, spec))
    assert height > 1.5 * width


def test_an_older_picture_is_replaced(tmp_path: Path) -> None:
    spec = wide_spec()
    path = tmp_path / "flow.png"
    path.write_text("old")
    compare_fields(path, flow(spec), flow(spec), spec)
    png_size(path)


def test_a_body_and_unknown_points_may_hold_anything(tmp_path: Path) -> None:
    spec = wide_spec(body=True)
    truth = flow(spec)
    truth[:, spec.grid.body] = torch.nan
    known = torch.ones(8, 20, dtype=torch.bool)
    known[0, 0] = False
    truth[:, 0, 0] = torch.inf
    compare_fields(tmp_path / "flow.png", truth, flow(spec), spec, known=known)


def test_a_field_at_rest_can_be_drawn(tmp_path: Path) -> None:
    spec = wide_spec()
    rest = torch.zeros(3, 8, 20)
    compare_fields(tmp_path / "rest.png", rest, rest, spec)


@pytest.mark.parametrize(
    ("low", "high", "colours"),
    [(0.0, 1.2, VALUES), (-0.2, 1.2, VALUES), (-0.5, 1.2, SIGNED), (-3.0, -1.0, VALUES)],
)
def test_colours_part_at_zero_only_where_it_is_a_middle(
    low: float, high: float, colours: str
) -> None:
    layer = Layer(np.ma.masked_array(np.linspace(low, high, 500)))
    found = layer.scale()
    most = max(-low, high)
    assert found == ((-most, most, colours) if colours == SIGNED else (low, high, colours))
    both = low < 0 < high
    assert layer.scale(signed=True)[2] == (SIGNED if both else VALUES)


def test_a_few_points_do_not_decide_on_the_colours() -> None:
    values = np.linspace(0.1, 1.2, 1000)
    values[:3] = -1.0  # at a wall
    assert Layer(np.ma.masked_array(values)).scale() == (-1.0, 1.2, VALUES)


@pytest.mark.parametrize("colours", [ERRORS, SIGNED])
def test_a_body_is_told_from_values_around_zero(colours: str) -> None:
    grid, values = Grid((1, 2)), np.ma.masked_array([[0.0, 1.0]], mask=[[False, True]])
    image = show(Figure().subplots(), Layer(values), grid, -1.0, 1.0, colours)
    zero, body = np.asarray(image.to_rgba(values))[0, :, :3].mean(1)
    assert zero - body > 0.4


def test_bad_input_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    spec = wide_spec()
    good = flow(spec)
    path = tmp_path / "flow.png"
    with pytest.raises(ValueError, match=r"truth must have the spec's shape \(3, 8, 20\), found"):
        compare_fields(path, good[:2], good[:2], spec)
    with pytest.raises(ValueError, match=r"needs channels 'u' and 'v', found \('h',\)"):
        compare_fields(path, good[:1], good[:1], FieldSpec(channels=("h",), grid=spec.grid))
    with pytest.raises(ValueError, match="values that are not finite"):
        compare_fields(path, good, good * torch.nan, spec)
    with pytest.raises(ValueError, match=r"written as \.png, found 'flow\.gif'"):
        compare_fields(tmp_path / "flow.gif", good, good, spec)
    assert os.listdir(tmp_path) == []


def test_drawing_leaves_pyplot_and_the_settings_alone(tmp_path: Path) -> None:
    code = f"""
import sys, torch, matplotlib
before = matplotlib.rcParams.copy()
from pibert.fields import FieldSpec, Grid
from pibert.report.figures import compare_fields
compare_fields({str(tmp_path / "a.png")!r}, torch.randn(2, 8, 8), torch.randn(2, 8, 8),
               FieldSpec(grid=Grid((8, 8))))
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
