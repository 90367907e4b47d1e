"""Regions marked as body or as invalid, flips and rotations."""

import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pibert.data.format import write
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.regions import (
    flip_recordings,
    mark_recordings,
    read_region,
    rotate_recordings,
)
from pibert.fields import Boundary, Grid, Sides, Trajectory
from tests.data.helpers import SHAPE, disc, make_trajectory, random_states, recorded
from tests.helpers import assert_close, refused

GRID = Grid((20, 30), dx=0.1, dy=0.3, origin=(-1.0, 2.0))
"""The grid of ``make_trajectory`` with 20 x 30 points."""


def flow(name: str = "a", **changes: Any) -> Trajectory:
    return make_trajectory(name, states=random_states(4, 2, 20, 30), **changes)


def covered(text: str) -> Tensor:
    return read_region("--body", text).covers(flow())


def test_a_circle_covers_the_points_within_its_radius() -> None:
    x, y = GRID.coordinates(torch.float64)
    found = covered("circle:0.2,5,1.05")
    assert torch.equal(found, (x - 0.2) ** 2 + (y - 5) ** 2 <= 1.05**2)
    assert 0 < int(found.sum()) < found.numel()
    # A point on the edge lies inside, whatever the rounding.
    assert bool(covered("circle:0.2,5,0.3")[10, 15])


def test_a_polygon_covers_its_interior_and_its_edges() -> None:
    x, y = GRID.coordinates(torch.float64)
    box = (x >= -0.5 - 1e-9) & (x <= 0.5 + 1e-9) & (y >= 2.9 - 1e-9) & (y <= 5 + 1e-9)
    assert torch.equal(covered("polygon:-0.5,2.9,0.5,2.9,0.5,5,-0.5,5"), box)
    assert torch.equal(covered("polygon:-0.5,5,0.5,5,0.5,2.9,-0.5,2.9"), box)
    assert torch.equal(covered("polygon:-0.5,5;0.5,5;0.5,2.9;-0.5,2.9;-0.5,5"), box)  # closed
    # An L: the notch is not covered.
    notched = covered("polygon:-1,2,1,2,1,3.4,0,3.4,0,7,-1,7")
    assert bool(notched[2, 15]) and bool(notched[12, 5]) and not bool(notched[12, 15])
    # A triangle by half planes.
    triangle = covered("polygon:-1,2,1.93,2,-1,7.71")
    exact = (y - 2) / 5.71 + (x + 1) / 2.93 <= 1
    assert torch.equal(triangle, exact)


@pytest.mark.parametrize("text", ["x,y\n-1,2\n1.93,2\n-1,7.71\n", "# mm\n-1 2\n\n1.93 2\n-1 7.71"])
def test_corners_come_from_a_text_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wing.csv"
    path.write_text(text)
    assert torch.equal(covered(str(path)), covered("polygon:-1,2,1.93,2,-1,7.71"))


def picture(path: Path, marked: np.ndarray, white: int = 255, mode: Any = np.uint8) -> str:
    """An image of a mask (y, x) whose row 0 is the bottom."""
    Image.fromarray(np.ascontiguousarray(marked[::-1]).astype(mode) * mode(white)).save(path)
    return str(path)


@pytest.mark.parametrize(("white", "mode"), [(255, np.uint8), (1, np.uint8), (65535, np.uint16)])
def test_an_image_of_the_grid_size_marks_pixel_by_pixel(
    tmp_path: Path, white: int, mode: Any
) -> None:
    marked = np.zeros((20, 30), bool)
    marked[2:5, 10:20], marked[15, 3] = True, True
    text = picture(tmp_path / "mask.png", marked, white, mode)
    assert torch.equal(covered(text), torch.from_numpy(marked))
    assert torch.equal(covered(f"dark:{text}"), torch.from_numpy(~marked))


def test_a_black_image_covers_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not covered(picture(tmp_path / "mask.png", np.zeros(GRID.shape, bool))).any()


def test_a_larger_image_marks_cells_covered_by_half(tmp_path: Path) -> None:
    # Cells are 0.1 x 0.3: an image with square pixels has 30 x 60 of them, or a multiple.
    marked = np.zeros((120, 60), bool)
    marked[12:24, 20:24] = True  # rows 2 and 3, columns 10 and 11
    found = covered(picture(tmp_path / "mask.png", marked))
    expected = torch.zeros(20, 30, dtype=torch.bool)
    expected[2:4, 10:12] = True
    assert torch.equal(found, expected)
    with refused("60 x 60 pixels", "30 x 20"):
        covered(picture(tmp_path / "mask.png", np.eye(60, dtype=bool)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("circle:1,2", "X,Y,R, such as circle:0.1,0.05,0.01"),
        ("polygon:1,2,3,4,5,6,7", "X,Y pairs of at least three corners"),
        ("square", "zeros, circle:X,Y,R, polygon:"),
        ("absent.png", "no such file"),
        ("three.csv", "line 3 has 3 values"),
        ("script.png", "cannot identify image file"),
        ("grey.png", "black and white"),
    ],
)
def test_malformed_regions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("three.csv").write_text("0,0\n1,1\n1,2,3\n")

    # PostScript, which Pillow would have Ghostscript run.
    Path("script.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    Image.fromarray(np.arange(200, dtype=np.uint8).reshape(10, 20)).save("grey.png")
    with refused(f"--body {text}: ", words):
        read_region("--body", text)


def test_regions_are_added_to_the_masks_of_the_data() -> None:
    body, valid = torch.zeros(20, 30, dtype=torch.bool), torch.ones(20, 30, dtype=torch.bool)
    body[0, 0], valid[1, 1] = True, False
    circle, box = "circle:0.2,5,1.05", "polygon:-1,2,-0.8,2,-0.8,3,-1,3"
    marked = mark_recordings(recorded(flow(body=body, valid=valid)), [circle], [box])
    assert marked.notes == (
        "119 of 600 points (19.83%) marked as body",
        "12 of 600 points (2.00%) marked as not valid",
    )
    found = marked["a"]
    assert found.local["marked"] == {"body": [circle], "mask": [box]}
    assert isinstance(found.body, Tensor) and torch.equal(found.body, body | covered(circle))
    assert found.spec.grid.body is not None and torch.equal(found.spec.grid.body, found.body)
    known = ~body & valid & ~covered(circle) & ~covered(box)
    assert torch.equal(found.known(slice(1, 3)), known.expand(2, 20, 30))


def test_zeros_mark_a_body_in_all_frames_and_invalid_vectors_in_some() -> None:
    states = random_states(4, 3, 20, 30)
    states[:, :2, 5:9, 7:11] = 0  # the pressure is not zero inside
    states[1, 0, 6, 8] = float("nan")  # missing in one frame, zero in the others
    states[2, :2, 15, 15] = 0
    states[1, 0, 3, 3] = 0  # one component alone is a vector
    whole = make_trajectory(states=states, channels=("u", "v", "p"))
    solid = torch.zeros(20, 30, dtype=torch.bool)
    solid[5:9, 7:11] = True
    found = mark_recordings(recorded(whole), ["zeros"], [])["a"]
    assert isinstance(found.body, Tensor) and torch.equal(found.body, solid)
    both = mark_recordings(recorded(whole), ["zeros"], ["zeros"])
    assert "exactly zero" in both.notes[1]
    known = (~solid).expand(4, 20, 30).clone()
    known[2, 15, 15] = False
    assert torch.equal(both["a"].known(), known)
    missing = mark_recordings(recorded(whole), [], ["zeros"])["a"]
    known[1, 6, 8] = True  # NaN is not zero
    assert missing.body is None and torch.equal(missing.known(), known)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (["circle:100,100,1"], "no point of trajectory 'a': its x goes from -1 to 1.9"),
        (["zeros"], "--body zeros covers no point"),
        (["polygon:-2,0,0,0,0,9,-2,9", "polygon:0,0,2,0,2,9,0,9"], "cover all points"),
    ],
)
def test_regions_that_mark_nothing_or_everything_are_refused(body: list[str], words: str) -> None:
    with refused(words, "--body", error=SourceError):
        mark_recordings(recorded(flow()), body, [])


def test_flipped_rows_take_masks_and_sides_along(tmp_path: Path) -> None:
    valid = torch.ones(6, *SHAPE, dtype=torch.bool)
    valid[2, 0, 1] = False
    original = make_trajectory(channels=("p", "u", "v"), body=disc(), valid=valid)
    path = tmp_path / "a.h5"
    write(path, [original])
    recordings = open_recordings(path, hints=Hints(flip=("y",)))
    turned = recordings[0]
    torch.testing.assert_close(turned.read(), original.read().flip(2))
    assert torch.equal(turned.known(), original.known().flip(1))
    assert turned.spec.grid.body is not None and torch.equal(turned.spec.grid.body, disc().flip(0))
    before, after = original.spec.grid, turned.spec.grid
    assert (after.sides.bottom, after.sides.top) == (before.sides.top, before.sides.bottom)
    assert (after.sides.left, after.sides.right) == (before.sides.left, before.sides.right)
    assert after.origin == before.origin
    assert turned.local["flip"] == ["y"]
    assert recordings.notes[-1] == "reversed as requested: y"


def test_a_flip_of_a_missing_channel_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [make_trajectory(channels=("u", "T"))])
    for flip, found in ((("v",), "'v' to flip; it has u, T"), (("z",), "x, y, u, v")):
        with pytest.raises(ValueError, match=found):
            open_recordings(tmp_path / "a.h5", hints=Hints(flip=flip))[0]


def turning_flow() -> Trajectory:
    """A vortex about (0.4, 0.2) with a pressure, a body, a gap and different sides."""
    base = make_trajectory(frames=2, channels=("u", "v", "p"), body=disc(), filled=disc().flip(1))
    x, y = base.spec.grid.coordinates(torch.float64)
    fields = torch.stack((-(y - 0.2), x - 0.4, x + 10 * y))
    valid = torch.rand(2, *base.spec.grid.shape, generator=torch.Generator().manual_seed(1)) > 0.2
    return replace(base, states=fields.expand(2, -1, -1, -1).clone(), valid=valid)


def test_a_vortex_rotated_by_a_quarter_turn_is_the_vortex_about_the_rotated_centre() -> None:
    turned = rotate_recordings(recorded(turning_flow()), 90)[0]
    x, y = turned.spec.grid.coordinates(torch.float64)
    # (0.4, 0.2) becomes (-0.2, 0.4); a pressure x + 10 y becomes y - 10 x.
    assert_close(turned.read()[0], torch.stack((-(y - 0.4), x + 0.2, y - 10 * x)), rtol=1e-12)
    assert (turned.spec.grid.dx, turned.spec.grid.dy) == (0.3, 0.1)
    # Inflow on the left, outflow on the right, slip below and wall above turn too.
    assert turned.spec.grid.sides == Sides(
        Boundary.WALL, Boundary.SLIP, Boundary.INFLOW, Boundary.OUTFLOW
    )
    before, after = turning_flow().known(), turned.known()
    for (row, column), inside in zip(
        torch.cartesian_prod(*map(torch.arange, before.shape[1:])).tolist(),
        before[1].flatten().tolist(),
        strict=True,
    ):
        assert bool(after[1, column, before.shape[1] - 1 - row]) is inside


def test_a_stagnation_flow_changes_its_sign_in_a_quarter_turn() -> None:
    base = turning_flow()
    x, y = base.spec.grid.coordinates(torch.float64)
    strained = replace(base, states=torch.stack((x, -y, x * y)).expand(2, -1, -1, -1).clone())
    turned = rotate_recordings(recorded(strained), -270)[0]
    x, y = turned.spec.grid.coordinates(torch.float64)
    assert_close(turned.read()[0], torch.stack((-x, y, -x * y)), rtol=1e-12)


def test_four_quarter_turns_are_the_identity_bit_for_bit() -> None:
    flow, turned = turning_flow(), turning_flow()
    for _ in range(4):
        turned = rotate_recordings(recorded(turned), 90)[0]
    assert torch.equal(turned.read(), flow.read()) and turned.spec == flow.spec
    assert torch.equal(turned.known(), flow.known())
    assert torch.equal(turned.measured(), flow.measured()) and turned.local == flow.local
    half = rotate_recordings(recorded(flow), 180)[0]
    assert torch.equal(half.read(slice(0, 1), [1]), -flow.read(slice(0, 1), [1]).flip(-1, -2))


def test_rotations_that_cannot_be_exact_are_refused() -> None:
    with refused("multiple of 90", "30", "interpolation"):
        rotate_recordings(recorded(turning_flow()), 30)
    directed = make_trajectory(channels=("u", "v", "u_low"))
    with refused("u_low", "--channels"):
        rotate_recordings(recorded(directed), 90)[0]


def test_uncertainties_turn_with_their_components_and_keep_their_sign() -> None:
    flow = make_trajectory(channels=("u", "v", "uncertainty_u", "uncertainty_v"))
    turned = rotate_recordings(recorded(flow), 90)[0]
    before = torch.rot90(flow.read(), -1, (-2, -1))
    signs = torch.tensor([-1.0, 1.0, 1.0, 1.0])[:, None, None]
    assert torch.equal(turned.read(), before[:, [1, 0, 3, 2]] * signs)
    alone = make_trajectory(channels=("u", "v", "uncertainty_u"))
    with refused("uncertainty_u", "--channels"):
        rotate_recordings(recorded(alone), 90)[0]


def test_concentrations_called_u_and_v_do_not_turn_as_vectors() -> None:
    flow = replace(turning_flow(), spec=replace(turning_flow().spec, family=None))
    turned = rotate_recordings(recorded(flow), 90, "gray-scott")[0]
    assert torch.equal(turned.read(), torch.rot90(flow.read(), -1, (-2, -1)))


def test_a_mirrored_vorticity_changes_its_sign() -> None:
    flow = make_trajectory(channels=("u", "v", "omega"))
    mirrored = flip_recordings(recorded(flow), ("x", "u"))[0]
    expected = flow.read().flip(-1) * torch.tensor([-1.0, 1.0, -1.0])[:, None, None]
    assert torch.equal(pickle.loads(pickle.dumps(mirrored)).read(), expected)
    assert torch.equal(mirrored.read(slice(1, 4, 2), [2]), expected[1:4:2, 2:])
    assert mirrored.spec.grid.sides.left == flow.spec.grid.sides.right
    # Rows stored from top to bottom are no mirror image.
    assert torch.equal(flip_recordings(recorded(flow), ("y",))[0].read(), flow.read().flip(-2))


def test_the_ends_of_an_interval_are_exchanged_where_their_component_changes_its_sign() -> None:
    flow = make_trajectory(channels=("u", "v", "omega", "u_low", "u_high", "v_low", "omega_low"))
    fields = flow.read().flip(-1)
    reversed_ = flip_recordings(recorded(flow), ("x",))[0]
    assert torch.equal(reversed_.read(), fields)  # no component changes
    bounds = make_trajectory(channels=("u", "v", "u_low", "u_high"))
    mirrored = flip_recordings(recorded(bounds), ("x", "u"))[0]
    u, v, low, high = bounds.read().flip(-1).unbind(1)
    assert torch.equal(mirrored.read(), torch.stack((-u, v, -high, -low), dim=1))
    assert torch.equal(mirrored.read(slice(2, 3), [3])[:, 0], -low[2:3])
    with refused("v_low, omega_low", "--channels"):
        flip_recordings(recorded(flow), ("y", "v"))[0]
    flow = make_trajectory(channels=("u_low", "u_high", "v_low", "v_high"))
    u_low, u_high, v_low, v_high = torch.rot90(flow.read(), -1, (-2, -1)).unbind(1)
    turned = rotate_recordings(recorded(flow), 90)[0].read()
    assert torch.equal(turned, torch.stack((-v_high, -v_low, u_low, u_high), dim=1))


def test_statistics_and_stresses_turn_with_their_components() -> None:
    names = ("mean_u", "mean_v", "rms_u", "rms_v", "uu", "uv", "vv", "uw", "vw", "mean_p", "tke")
    flow = replace(make_trajectory(channels=names), series={"drag": torch.zeros(6)})
    recordings = rotate_recordings(recorded(flow), 90)
    before = torch.rot90(flow.read(), -1, (-2, -1))
    order = torch.tensor([1, 0, 3, 2, 6, 5, 4, 8, 7, 9, 10])
    signs = torch.tensor([-1.0, 1, 1, 1, 1, -1, 1, -1, 1, 1, 1])[:, None, None]
    assert torch.equal(recordings[0].read(), before[:, order] * signs)
    assert any("scalars" in note and "mean_p, tke" in note for note in recordings.notes)
    mirrored = flip_recordings(recorded(flow), ("y", "v"))
    signs = torch.tensor([1.0, -1, 1, 1, 1, -1, 1, 1, -1, 1, 1])[:, None, None]
    assert torch.equal(mirrored[0].read(), flow.read().flip(-2) * signs)
    assert any("values per frame" in note and "drag" in note for note in mirrored.notes)
    full = rotate_recordings(rotate_recordings(recorded(flow), 90), 270)[0]
    assert torch.equal(full.read(), flow.read())


@pytest.mark.parametrize(
    "channels",
    [
        ("u", "v", "ax", "ay"),
        ("u", "v", "dudx", "dvdy"),
        ("u", "v", "force_x"),
        ("u", "v", "tau_xy"),
        ("u", "v", "error_u", "error_v"),
        ("u", "p"),
        ("mean_u", "p"),
    ],
)
def test_channels_with_an_unclear_direction_are_refused(channels: tuple[str, ...]) -> None:
    flow = make_trajectory(channels=channels)
    with refused(channels[-1] if "v" in channels else channels[0], "--channels", "--keep u,v"):
        rotate_recordings(recorded(flow), 90)[0]
    if "v" in channels:
        with refused(channels[-1]):
            flip_recordings(recorded(flow), ("y", "v"))[0]
    assert torch.equal(flip_recordings(recorded(flow), ("y",))[0].read(), flow.read().flip(-2))


def test_standard_errors_of_our_statistics_turn_without_a_sign() -> None:
    flow = make_trajectory(channels=("error_u", "error_v"))
    flow = replace(flow, local={**flow.local, "statistics": "moments"})
    turned = rotate_recordings(recorded(flow), 90)[0]
    assert torch.equal(turned.read(), torch.rot90(flow.read(), -1, (-2, -1)).flip(1))
