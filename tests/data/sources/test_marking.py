"""Bodies and masked regions that a user states: shapes, files, images, zeros, and what is wrong."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pibert.data.convert import convert
from pibert.data.format import Reader, write
from pibert.data.sources import open_recordings
from pibert.data.sources.marking import mark_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.data.sources.regions import read_region
from pibert.fields import Grid, Trajectory, read_mask
from tests.data.helpers import make_trajectory, random_states

GRID = Grid((20, 30), dx=0.1, dy=0.3, origin=(-1.0, 2.0))
"""The grid of ``make_trajectory`` with 20 x 30 points."""


def recorded(*trajectories: Trajectory) -> Recordings:
    by_name = {trajectory.name: trajectory for trajectory in trajectories}
    return Recordings(
        kind="piv", path=Path("run"), names=tuple(by_name), load=lambda name: by_name[name]
    )


def flow(name: str = "a", **changes: Any) -> Trajectory:
    return make_trajectory(name, states=random_states(4, 2, 20, 30), **changes)


def covered(text: str, grid: Grid = GRID) -> Tensor:
    covers = read_region("--body", text).covers
    assert covers is not None
    return covers(grid)


def test_a_circle_covers_the_points_within_its_radius() -> None:
    x, y = GRID.coordinates(torch.float64)
    found = covered("circle:0.2,5,1.05")
    assert torch.equal(found, (x - 0.2) ** 2 + (y - 5) ** 2 <= 1.05**2)
    assert 0 < int(found.sum()) < found.numel()
    # A point on the edge lies inside, whatever the rounding.
    assert bool(covered("circle:0.2,5,0.3")[10, 15])


def test_a_polygon_covers_its_inside_and_its_edges_in_either_direction() -> None:
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


@pytest.mark.parametrize("text", ["x,y\n-1,2\n1.93,2\n-1,7.71\n", "# mm\n-1 2\n\n1.93\t2\n-1;7.71"])
def test_corners_come_from_a_text_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wing.csv"
    path.write_text(text)
    assert torch.equal(covered(str(path)), covered("polygon:-1,2,1.93,2,-1,7.71"))


def picture(path: Path, marked: np.ndarray, white: int = 255, mode: Any = np.uint8) -> str:
    """An image of a mask (y, x) whose row 0 is the bottom."""
    Image.fromarray(np.ascontiguousarray(marked[::-1]).astype(mode) * mode(white)).save(path)
    return str(path)


@pytest.mark.parametrize(("white", "mode"), [(255, np.uint8), (1, np.uint8), (65535, np.uint16)])
def test_an_image_of_the_grid_is_taken_pixel_by_pixel(
    tmp_path: Path, white: int, mode: Any
) -> None:
    marked = np.zeros((20, 30), bool)
    marked[2:5, 10:20], marked[15, 3] = True, True
    text = picture(tmp_path / "mask.png", marked, white, mode)
    assert torch.equal(covered(text), torch.from_numpy(marked))
    assert torch.equal(covered(f"dark:{text}"), torch.from_numpy(~marked))


def test_a_larger_image_marks_the_points_whose_cells_it_covers_by_half(tmp_path: Path) -> None:
    # Cells are 0.1 x 0.3: an image with square pixels has 30 x 60 of them, or a multiple.
    marked = np.zeros((120, 60), bool)
    marked[12:24, 20:24] = True  # rows 2 and 3, columns 10 and 11
    found = covered(picture(tmp_path / "mask.png", marked))
    expected = torch.zeros(20, 30, dtype=torch.bool)
    expected[2:4, 10:12] = True
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("circle:1,2", "expected three numbers X,Y,R, such as circle:0.1,0.05,0.01"),
        ("circle:1,2,0", "expected a positive radius, found 0"),
        ("circle:1,2,nan", "expected three numbers"),
        ("polygon:1,2,3,4", "X,Y pairs of at least three corners"),
        ("polygon:1,2,3,4,5,6,7", "X,Y pairs of at least three corners"),
        ("polygon:a,b,c,d,e,f", "X,Y pairs"),
        ("square", "no such region; expected zeros, circle:X,Y,R, polygon:"),
        ("absent.png", "no such file"),
        ("two.csv", "expected at least three corners, a line x, y each, found 2"),
        ("three.csv", "expected two numbers x, y in every line, found '1,2,3'"),
        ("text.png", "not an image that can be read"),
        ("script.png", "not an image that can be read (cannot identify image file"),
        ("broken.png", "not an image that can be read (broken PNG file"),
        ("huge.png", "not an image that can be read (9000 x 9000 pixels, more than 64,000,000)"),
        ("grey.png", "expected an image in black and white"),
    ],
)
def test_what_is_no_region_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.csv").write_text("0,0\n1,1\n")
    Path("three.csv").write_text("0,0\n1,1\n1,2,3\n")
    Path("text.png").write_text("no picture")
    # PostScript, which Pillow would have Ghostscript run.
    Path("script.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    Path("huge.png").write_bytes(png(9000, 9000))
    Path("broken.png").write_bytes(png(9, 9).replace(b"IEND", b"\0\0\0\0"))
    Image.fromarray(np.arange(200, dtype=np.uint8).reshape(10, 20)).save("grey.png")
    with pytest.raises(ValueError, match=f"--body {text}: .*") as error:
        read_region("--body", text)
    assert words in str(error.value)


def png(width: int, height: int) -> bytes:
    """The head of an image of one bit per pixel, and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_an_image_of_another_aspect_ratio_is_refused(tmp_path: Path) -> None:
    text = picture(tmp_path / "mask.png", np.eye(60, dtype=bool))
    with pytest.raises(ValueError, match=r"60 x 60 pixels \(aspect ratio 1\), the field 30 x 20"):
        covered(text)


def test_bodies_and_masks_are_added_to_what_the_data_state() -> None:
    body, valid = torch.zeros(20, 30, dtype=torch.bool), torch.ones(20, 30, dtype=torch.bool)
    body[0, 0], valid[1, 1] = True, False
    circle, box = "circle:0.2,5,1.05", "polygon:-1,2,-0.8,2,-0.8,3,-1,3"
    marked = mark_recordings(recorded(flow(body=body, valid=valid)), [circle], [box])
    assert marked.remarks == (
        "119 of 600 points (19.83%) marked as body",
        "12 of 600 points (2.00%) marked as not valid",
    )
    found = marked["a"]
    assert found.local["marked"] == {"body": [circle], "mask": [box]}
    assert isinstance(found.body, Tensor) and torch.equal(found.body, body | covered(circle))
    assert found.spec.grid.body is not None and torch.equal(found.spec.grid.body, found.body)
    known = ~body & valid & ~covered(circle) & ~covered(box)
    assert torch.equal(found.known(slice(1, 3)), known.expand(2, 20, 30))


def test_moving_masks_stay_lazy() -> None:
    class Counted:
        def __init__(self, mask: Tensor) -> None:
            self.mask, self.reads = mask, 0

        @property
        def shape(self) -> tuple[int, ...]:
            return tuple(self.mask.shape)

        def read(self, frames: slice, channels: Any = None) -> Tensor:
            self.reads += 1
            return self.mask[frames]

    generator = torch.Generator().manual_seed(0)
    body, valid = (torch.rand(4, 20, 30, generator=generator) < share for share in (0.1, 0.9))
    circle = "circle:0.2,5,1.05"
    sources = Counted(body), Counted(valid)
    marked = mark_recordings(recorded(flow(body=sources[0], valid=sources[1])), [circle], [circle])[
        "a"
    ]
    assert [source.reads for source in sources] == [0, 0]
    assert marked.body is not None and marked.valid is not None
    assert torch.equal(read_mask(marked.body, slice(1, 3)), body[1:3] | covered(circle))
    assert torch.equal(read_mask(marked.valid, slice(1, 3)), valid[1:3] & ~covered(circle))


def test_zeros_in_all_frames_are_a_body_and_those_in_some_are_missing() -> None:
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
    assert both.remarks[1].startswith("vectors that are exactly zero are marked as not valid")
    known = (~solid).expand(4, 20, 30).clone()
    known[2, 15, 15] = False
    assert torch.equal(both["a"].known(), known)
    missing = mark_recordings(recorded(whole), [], ["zeros"])["a"]
    known[1, 6, 8] = True  # NaN is not zero: what it means is for others to say
    assert missing.body is None and torch.equal(missing.known(), known)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            ["circle:100,100,1"],
            "no point of trajectory 'a': its x goes from -1 to 1.9, its y",
        ),
        (["zeros"], "its velocity is nowhere exactly zero in all frames"),
        (["circle:0,0,100"], "cover all points of trajectory 'a': nothing is left"),
        (["polygon:-2,0,0,0,0,9,-2,9", "polygon:0,0,2,0,2,9,0,9"], "cover all points"),
    ],
)
def test_regions_that_mark_nothing_or_everything_are_refused(body: list[str], words: str) -> None:
    with pytest.raises(SourceError) as error:
        mark_recordings(recorded(flow()), body, [])
    assert words in str(error.value) and "run: --body" in str(error.value)


def test_a_later_trajectory_is_checked_when_it_is_loaded() -> None:
    still = flow().read().clone()
    still[:, :, 4, 4] = 0
    marked = mark_recordings(recorded(replace(flow(), states=still), flow("b")), ["zeros"], [])
    assert marked["a"].body is not None
    with pytest.raises(SourceError, match="trajectory 'b'"):
        marked["b"]


def test_any_kind_of_file_takes_a_body_after_it_was_flipped(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [flow()])
    u = random_states(3, 20, 30).numpy()
    np.savez(tmp_path / "a.npz", u=u, v=u, x=-1 + 0.1 * np.arange(30), y=2 + 0.3 * np.arange(20))
    for name in ("a.h5", "a.npz"):
        for flip in ((), ("y",)):
            hints = Hints(body=("circle:0.2,3,0.5",), flip=flip)
            found = open_recordings(tmp_path / name, hints=hints)[0]
            assert found.spec.grid.body is not None
            assert torch.equal(found.spec.grid.body, covered("circle:0.2,3,0.5"))
    recordings = open_recordings(tmp_path / "a.npz", hints=Hints(body=("circle:0.2,3,0.5",)))
    out = convert(recordings, tmp_path / "out.h5")
    (written,) = Reader(out)
    assert written.spec.grid.body is not None
    assert written.local["marked"] == {"body": ["circle:0.2,3,0.5"]}
