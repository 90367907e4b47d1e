"""Writers of frames: what other programs find in their files, and what stays after errors."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
import torch
import xarray

from pibert.data.format import Reader, check
from pibert.data.readers import open_recordings
from pibert.data.writers import WRITERS
from pibert.data.writers.frames import FrameWriter
from pibert.fields import read_mask
from tests.data.writers.helpers import BODY, SHAPE, block, description, fields, image
from tests.helpers import small_disk

FRAMES = 5
KNOWN = ~BODY.numpy()


def written(path: Path, *, gap: bool = False, vorticity: bool = False) -> FrameWriter:
    about = description(vorticity_unit="1/s" if vorticity else None)
    with WRITERS[path.suffix](path, about) as writer:
        for start, stop in itertools.pairwise((0, 2, 3, FRAMES)):
            writer.append(block(start, stop, gap=gap))
    return writer


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_native_file_passes_the_check_and_has_its_provenance(tmp_path: Path) -> None:
    written(tmp_path / "flow.h5")
    check(tmp_path / "flow.h5")
    found = Reader(tmp_path / "flow.h5")["wake <1>"]
    expected = torch.where(BODY, torch.nan, fields(FRAMES))
    torch.testing.assert_close(found.read(), expected, rtol=0, atol=0, equal_nan=True)
    assert found.time.tolist() == [10.0, 10.5, 11.0, 11.5, 12.0]
    assert found.valid is None and torch.equal(found.known(), block(0, FRAMES).known)
    assert found.spec.grid.origin == (-1.0, 2.0) and found.spec.units[2] == "m^2/s^2"
    assert found.local["prediction"]["model"] == "run"


def test_xarray_finds_coordinates_units_and_gaps(tmp_path: Path) -> None:
    written(tmp_path / "flow.nc", gap=True, vorticity=True)
    with xarray.open_dataset(tmp_path / "flow.nc") as found:
        assert found.u.dims == ("t", "y", "x") and found.u.attrs["units"] == "m/s"
        assert found.t.values.tolist() == [10.0, 10.5, 11.0, 11.5, 12.0]
        assert found.t.attrs["units"] == "s" and found.t.attrs["axis"] == "T"
        np.testing.assert_allclose(found.x, -1.0 + 0.1 * np.arange(SHAPE[1]))
        np.testing.assert_allclose(found.y, 2.0 + 0.3 * np.arange(SHAPE[0]))
        assert found.x.attrs["units"] == "m" and found.vorticity.attrs["units"] == "1/s"
        for i, name in enumerate("uvp"):
            expected = block(0, FRAMES, gap=True).masked[:, i].numpy()
            np.testing.assert_array_equal(found[name].values, expected)
        # u grows by 10 over dy, v by 1 over dx.
        assert float(found.vorticity[0, 3, 5]) == pytest.approx(1 / 0.1 - 10 / 0.3, rel=1e-5)
        np.testing.assert_array_equal(found.body.values, BODY.numpy())
        assert found.attrs["Conventions"].startswith("CF-")
        assert json.loads(found.attrs["pibert"])["local"]["prediction"]["model"] == "run"


def test_a_table_has_a_line_for_every_point_and_is_read_again(tmp_path: Path) -> None:
    with WRITERS[".csv"](tmp_path / "flow.csv", description(marks_filled=True)) as writer:
        for start, stop in itertools.pairwise((0, 2, FRAMES)):
            one = block(start, stop, gap=start > 0)  # the gap is not in all frames
            filled = torch.zeros_like(one.known)
            filled[:, 0, 1] = True
            writer.append(replace(one, filled=filled))
    lines = (tmp_path / "flow.csv").read_text().splitlines()
    assert lines[0] == "time [s],x [m],y [m],u [m/s],v [m/s],p [m^2/s^2],filled"
    assert len(lines) == 1 + FRAMES * SHAPE[0] * SHAPE[1]
    (found,) = open_recordings(tmp_path / "flow.csv")
    assert found.spec.channels == ("u", "v", "p") and found.spec.units[2] == "m^2/s^2"
    assert found.time.tolist() == [10.0, 10.5, 11.0, 11.5, 12.0]
    assert found.spec.grid.origin == pytest.approx((-1.0, 2.0))
    whole = torch.cat([block(0, 2).masked, block(2, FRAMES, gap=True).masked])
    known = whole.isfinite().all(1)
    assert torch.equal(found.known(), known)
    values, expected = (fields.movedim(1, -1)[known] for fields in (found.read(), whole))
    torch.testing.assert_close(values, expected)
    assert found.filled is not None
    marked = read_mask(found.filled, slice(None))
    assert marked.nonzero()[:, -2:].unique(dim=0).tolist() == [[0, 1]]


def test_a_table_keeps_close_times_and_places_far_from_zero_apart(tmp_path: Path) -> None:
    about = description()
    spec = replace(about.spec, grid=replace(about.spec.grid, origin=(5e5, 4e6)))
    one = block(0, 2)
    with WRITERS[".csv"](tmp_path / "flow.csv", replace(about, spec=spec)) as writer:
        writer.append(replace(one, time=1e6 + one.time / 1000))
    (found,) = open_recordings(tmp_path / "flow.csv")
    assert found.time.tolist() == pytest.approx([1e6 + 0.01, 1e6 + 0.0105], abs=1e-9)
    assert found.spec.grid.origin == pytest.approx((5e5, 4e6), abs=1e-9)
    assert found.spec.grid.dx == pytest.approx(0.1, rel=1e-6)


def test_vtk_images_hold_vectors_and_scalars_at_their_points(tmp_path: Path) -> None:
    written(tmp_path / "flow.pvd", gap=True)
    entries = list(ElementTree.parse(tmp_path / "flow.pvd").iter("DataSet"))
    assert [float(e.get("timestep", "")) for e in entries] == [10.0, 10.5, 11.0, 11.5, 12.0]
    for number, entry in enumerate(entries):
        tree, arrays = image(tmp_path / entry.get("file", ""))
        grid = tree.find("ImageData")
        assert grid is not None and grid.get("WholeExtent") == "0 6 0 4 0 0"
        assert [float(n) for n in grid.get("Origin", "").split()] == [-1.0, 2.0, 0.0]
        assert [float(n) for n in grid.get("Spacing", "").split()][:2] == [0.1, 0.3]
        expected = block(0, FRAMES, gap=True).masked[number].numpy()
        np.testing.assert_array_equal(arrays["velocity"][..., 0], expected[0])
        np.testing.assert_array_equal(arrays["velocity"][..., 1], expected[1])
        assert (arrays["velocity"][..., 2][KNOWN][:-1] == 0).all()
        np.testing.assert_array_equal(arrays["p"], expected[2])
        np.testing.assert_array_equal(arrays["body"], BODY.numpy())
        assert not arrays["valid"][4, 6] and arrays["valid"].sum() == KNOWN.sum() - 1


def numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split()]


@pytest.mark.parametrize("normal", "xyz")
def test_planes_keep_their_position_in_space(tmp_path: Path, normal: str) -> None:
    plane = {"normal": normal, "position": 0.7}
    about = description(local={"plane": plane})
    for suffix in (".pvd", ".xdmf"):
        with WRITERS[suffix](tmp_path / f"wake{suffix}", about) as writer:
            writer.append(block(0, 2))
    (read,) = open_recordings(tmp_path / "wake.pvd")
    assert read.local["plane"] == plane
    assert read.spec.grid.origin == pytest.approx((-1.0, 2.0))
    indices = [read.spec.channels.index(name) for name in ("u", "v", "p")]
    known = block(0, 2).known
    states = read.read()[:, indices].movedim(1, 0)[:, known]
    torch.testing.assert_close(states, fields(2).movedim(1, 0)[:, known])
    text = (tmp_path / "wake_frames" / "frame_000000.vti").read_text(errors="replace")
    origin = {"x": "0.7 -1.0 2.0", "y": "-1.0 0.7 2.0", "z": "-1.0 2.0 0.7"}[normal]
    assert f'Origin="{origin}"' in text
    with h5py.File(tmp_path / "wake.xdmf.h5") as file:
        np.testing.assert_allclose(file[normal], [0.7])
        assert [len(file[name]) for name in "xyz" if name != normal] == [7, 5]
        across = "xyz".index(normal)
        assert (np.nan_to_num(file["velocity"][..., across]) == 0).all()


def test_xdmf_selects_the_right_frame_of_its_arrays(tmp_path: Path) -> None:
    written(tmp_path / "flow.xdmf", gap=True, vorticity=True)
    collection = ElementTree.parse(tmp_path / "flow.xdmf").find("Domain/Grid")
    assert collection is not None and collection.get("CollectionType") == "Temporal"
    frames = collection.findall("Grid")
    times = [grid.find("Time").get("Value") for grid in frames]  # type: ignore[union-attr]
    assert [float(time or "nan") for time in times] == [10.0, 10.5, 11.0, 11.5, 12.0]
    with h5py.File(tmp_path / "flow.xdmf.h5") as file:

        def stored(item: ElementTree.Element) -> np.ndarray:
            name, _, key = (item.text or "").partition(":")
            assert name == "flow.xdmf.h5" and file[key].shape == tuple(
                numbers(item.get("Dimensions"))
            )
            return np.asarray(file[key])

        for number, grid in enumerate(frames):
            topology = grid.find("Topology")
            assert topology is not None and numbers(topology.get("Dimensions")) == [1, *SHAPE]
            x, y, z = (stored(item) for item in grid.findall("Geometry/DataItem"))
            np.testing.assert_allclose(x, -1.0 + 0.1 * np.arange(SHAPE[1]))
            np.testing.assert_allclose(y, 2.0 + 0.3 * np.arange(SHAPE[0]))
            assert z.tolist() == [0.0]
            shown = {}
            for attribute in grid.findall("Attribute"):
                slab, array = attribute.findall("DataItem/DataItem")
                start, step, count = np.reshape(numbers(slab.text), (3, -1))
                assert (step == 1).all()
                where = tuple(slice(a, a + n) for a, n in zip(start, count, strict=True))
                shown[attribute.get("Name")] = stored(array)[where][0]
            expected = block(0, FRAMES, gap=True).masked[number].numpy()
            np.testing.assert_array_equal(shown["velocity"][..., 1], expected[1])
            np.testing.assert_array_equal(shown["p"], expected[2])
            assert set(shown) == {"velocity", "p", "vorticity", "valid", "body"}


@pytest.mark.parametrize("suffix", WRITERS)
def test_an_error_or_no_frame_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    with pytest.raises(KeyError), WRITERS[suffix](path, description()) as writer:
        writer.append(block(0, 2))
        raise KeyError
    with pytest.raises(ValueError, match="no frame"), WRITERS[suffix](path, description()):
        pass
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("suffix", WRITERS)
def test_an_older_output_is_replaced_only_with_overwrite(tmp_path: Path, suffix: str) -> None:
    path, kind = tmp_path / f"a{suffix}", WRITERS[suffix]
    written(path)
    before = left_in(tmp_path)
    with pytest.raises(FileExistsError, match="--overwrite"), kind(path, description()):
        pass
    with kind(path, description(), overwrite=True) as writer:
        writer.append(block(0, 1))
    assert left_in(tmp_path) == before
    if suffix == ".pvd":
        assert left_in(tmp_path / "a_frames") == ["frame_000000.vti"]


def test_a_folder_with_other_files_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "a_frames").mkdir()
    (tmp_path / "a_frames" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="notes.txt"):
        with WRITERS[".pvd"](tmp_path / "a.pvd", description(), overwrite=True):
            pass
    assert left_in(tmp_path / "a_frames") == ["notes.txt"]


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_full_disk_is_reported_and_the_old_file_stays(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    written(path)
    before, old = left_in(tmp_path), path.read_bytes()
    with small_disk(1000), pytest.raises(OSError, match="cannot write"):
        with WRITERS[suffix](path, description(), overwrite=True) as writer:
            for start in range(0, 40, 10):
                writer.append(block(start, start + 10))
    assert left_in(tmp_path) == before and path.read_bytes() == old


@pytest.mark.parametrize("suffix", WRITERS)
def test_missing_folders_are_created_and_unusable_paths_refused(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / "no" / "such" / f"a{suffix}"
    with WRITERS[suffix](path, description()) as writer:
        writer.append(block(0, 2))
    assert path.is_file()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file"):
        WRITERS[suffix](tmp_path / "file" / "no" / f"a{suffix}", description()).check()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        WRITERS[suffix](tmp_path / "no", description(), overwrite=True).check()
