"""Fields turned round: rows, columns, components, masks and sides go together."""

import pickle
from pathlib import Path

import pytest
import torch

from pibert.data.format import Reader, write
from pibert.data.sources import open_recordings
from pibert.data.sources.recordings import Hints
from tests.data.helpers import SHAPE, disc, make_trajectory


def test_rows_and_masks_turn_and_sides_keep_to_them(tmp_path: Path) -> None:
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
    assert recordings.remarks[-1] == "flipped as stated: y"


def test_columns_turn_and_components_change_sign(tmp_path: Path) -> None:
    original = make_trajectory(channels=("p", "u", "v"))
    write(tmp_path / "a.h5", [original])
    turned = open_recordings(tmp_path / "a.h5", hints=Hints(flip=("x", "u")))[0]
    signs = torch.tensor([1.0, -1.0, 1.0])[:, None, None]
    torch.testing.assert_close(turned.read(), original.read().flip(3) * signs)
    torch.testing.assert_close(
        turned.read(slice(1, 4, 2), [1]), -original.read(slice(1, 4, 2), [1]).flip(3)
    )
    assert turned.spec.grid.sides.left == original.spec.grid.sides.right
    again = pickle.loads(pickle.dumps(turned))
    torch.testing.assert_close(again.read(), turned.read())


def test_a_turned_set_can_be_written(tmp_path: Path) -> None:
    body = torch.zeros(6, *SHAPE, dtype=torch.bool)
    body[torch.arange(6), torch.arange(6) % 5, 2] = True
    original = make_trajectory(body=body)
    write(tmp_path / "a.h5", [original])
    turned = open_recordings(tmp_path / "a.h5", hints=Hints(flip=("v", "y")))
    write(tmp_path / "b.h5", list(turned))
    (copy,) = Reader(tmp_path / "b.h5")
    assert torch.equal(copy.known(), original.known().flip(1))
    torch.testing.assert_close(copy.read(channels=[1]), -original.read(channels=[1]).flip(2))


@pytest.mark.parametrize("flip", [("z",), ("y", "y"), ("rows",)])
def test_another_name_is_refused_before_anything_is_read(
    tmp_path: Path, flip: tuple[str, ...]
) -> None:
    write(tmp_path / "a.h5", [make_trajectory()])
    with pytest.raises(ValueError, match="flip takes some of x, y, u, v"):
        open_recordings(tmp_path / "a.h5", hints=Hints(flip=flip))


def test_a_component_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [make_trajectory(channels=("u", "T"))])
    with pytest.raises(ValueError, match="no channel 'v' to flip; it has u, T"):
        open_recordings(tmp_path / "a.h5", hints=Hints(flip=("v",)))[0]
