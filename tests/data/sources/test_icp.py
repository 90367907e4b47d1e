"""ICP plasma data: image and spectrum pairs, and fields by name."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data import sources
from pibert.data.dataset import Samples, Window
from pibert.data.format import check, write
from pibert.data.sources.icp.fields import AUTHORS, FieldKeys, open_fields
from pibert.data.sources.icp.reader import (
    SETTINGS,
    TITLE,
    Pairs,
    SettingsFile,
    open_pairs,
    open_recordings,
    recognise,
    split_pairs,
)
from pibert.data.sources.recordings import Hints, SourceError
from pibert.data.sources.stated import family_note
from pibert.data.splits import Shares
from pibert.fields import Normalizer
from tests.lookalikes.icp import SPECIES, write_pair, write_pairs, write_run

COLOURS = ("red", "green", "blue")


def with_settings(tmp_path: Path, **changes: Any) -> Pairs:
    settings = write_pairs(tmp_path / "pairs")
    np.savez(tmp_path / "settings.npz", table=settings)
    file = SettingsFile(path=tmp_path / "settings.npz", key="table")
    return open_pairs(tmp_path / "pairs", replace(file, **changes))


# Pairs


def test_the_lookalike_has_the_published_header(tmp_path: Path) -> None:
    write_pair(tmp_path / "train_paired000000")
    for name, values in (("image.npy", 96 * 128 * 3), ("spectra.npy", 3072)):
        size = (tmp_path / "train_paired000000" / name).stat().st_size
        assert size == 128 + 4 * values


def test_images_and_spectra_are_read_as_they_are(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    pairs = open_pairs(tmp_path)
    assert len(pairs) == 20 and pairs.names[3] == "train_paired000003"
    for index in (2, 3):  # the second has a spectrum of shape (3072, 1)
        folder = tmp_path / pairs.names[index]
        np.testing.assert_array_equal(pairs.image(index).numpy(), np.load(folder / "image.npy"))
        stored = np.load(folder / "spectra.npy").ravel()
        np.testing.assert_array_equal(pairs.spectrum(index).numpy(), stored)
    assert open_pairs(tmp_path / pairs.names[3]).names == (pairs.names[3],)


def test_settings_belong_to_the_samples_by_order_or_by_name(tmp_path: Path) -> None:
    pairs = with_settings(tmp_path)
    with np.load(tmp_path / "settings.npz") as file:
        table = file["table"]
    assert pairs.settings is not None and pairs.columns == SETTINGS
    np.testing.assert_array_equal(pairs.settings.numpy(), table)
    names = np.array(pairs.names)
    np.savez(tmp_path / "named.npz", table=table[::-1], folders=names[::-1])
    file = SettingsFile(path=tmp_path / "named.npz", key="table", names_key="folders")
    again = open_pairs(tmp_path / "pairs", file)
    assert again.settings is not None and torch.equal(again.settings, pairs.settings)
    with h5py.File(tmp_path / "named.h5", "w") as hdf5:
        hdf5["a/table"], hdf5["folders"] = table[::-1], names[::-1].astype(object)
    file = SettingsFile(path=tmp_path / "named.h5", key="a/table", names_key="folders")
    again = open_pairs(tmp_path / "pairs", file)
    assert again.settings is not None and torch.equal(again.settings, pairs.settings)


def test_samples_of_one_setpoint_stay_together(tmp_path: Path) -> None:
    pairs = with_settings(tmp_path)
    assert pairs.settings is not None
    seen = set()
    for seed in range(5):
        split = split_pairs(pairs, Shares(train=0.6, valid=0.2), seed=seed)
        parts = [split.train, split.valid, split.test]
        assert [len(part) for part in parts] == [12, 4, 4]
        points = [{tuple(pairs.settings[s.trajectory].tolist()) for s in part} for part in parts]
        assert [len(p) for p in points] == [3, 1, 1]
        assert not points[0] & points[1] | points[0] & points[2] | points[1] & points[2]
        seen.add(split.test)
    assert len(seen) > 1


def test_a_split_without_settings_is_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    with pytest.raises(ValueError, match="the settings are not known; give their file"):
        split_pairs(open_pairs(tmp_path), Shares(), seed=0)


def test_hidden_patches_are_zero_and_the_rest_is_the_image(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    pairs = open_pairs(tmp_path)
    shown, hidden = pairs.hide_patches(1, 0.25, patch=16, seed=3)
    assert hidden.float().mean() == 0.25
    whole = hidden.reshape(6, 16, 8, 16).movedim(2, 1).flatten(2)
    assert torch.equal(whole.all(-1), whole.any(-1))
    assert bool((shown[hidden] == 0).all())
    assert torch.equal(shown[~hidden], pairs.image(1)[~hidden])
    assert torch.equal(pairs.hide_patches(1, 0.25, patch=16, seed=3)[1], hidden)
    assert not torch.equal(pairs.hide_patches(1, 0.25, patch=16, seed=4)[1], hidden)
    for share, patch in ((0.0, 16), (0.5, 7)):
        with pytest.raises(ValueError, match=f"found {share} and {patch}"):
            pairs.hide_patches(0, share, patch=patch)


def test_an_image_is_a_trajectory_of_one_frame(tmp_path: Path) -> None:
    pairs = with_settings(tmp_path)
    assert recognise(tmp_path / "pairs") and "ICP" in TITLE
    file = SettingsFile(path=tmp_path / "settings.npz", key="table")
    recordings = open_recordings(tmp_path / "pairs", settings=file)
    trajectory = recordings["train_paired000006"]
    image = pairs.image(6)
    # Row 0 of a trajectory is the bottom, that of an image the top.
    assert torch.equal(trajectory.read()[0], image.flip(0).movedim(-1, 0))
    assert torch.equal(trajectory.read(channels=[2])[0, 0], image[..., 2].flip(0))
    assert trajectory.spec.channels == COLOURS and trajectory.spec.family is None
    assert pairs.settings is not None
    assert list(trajectory.parameters) == list(SETTINGS)
    assert list(trajectory.parameters.values()) == pairs.settings[6].tolist()
    assert trajectory.source["split"] == "train"
    assert torch.equal(pickle.loads(pickle.dumps(trajectory)).read(), trajectory.read())
    opened = sources.open_recordings(tmp_path / "pairs", "icp")[0]
    assert "no PDE family is stated" in str(family_note(opened))
    with pytest.raises(SourceError, match="no channel u=red; data of this kind have: red=red"):
        open_recordings(tmp_path / "pairs", Hints(channels={"u": "red"}))


def test_settings_map_to_images_but_no_next_frame_exists(tmp_path: Path) -> None:
    with_settings(tmp_path)
    file = SettingsFile(path=tmp_path / "settings.npz", key="table")
    images = list(open_recordings(tmp_path / "pairs", settings=file))
    identity = Normalizer.identity(3)
    samples = Samples(images, window=Window(horizon=0, targets=COLOURS), normalizer=identity)
    batch = samples.batch([0, 7])
    assert tuple(batch.x.shape) == (2, 0, 96, 128) and tuple(batch.y.shape) == (2, 1, 3, 96, 128)
    assert not torch.equal(batch.parameters[0, :7], batch.parameters[1, :7])
    with pytest.raises(ValueError, match="no window of 2 frames"):
        Samples(images, window=Window(), normalizer=identity)


def test_pixels_that_are_not_finite_are_not_valid_and_refused_as_a_pair(tmp_path: Path) -> None:
    write_pair(tmp_path / "test_paired1")
    path = tmp_path / "test_paired1" / "image.npy"
    image = np.load(path)
    image[0, 5, 1] = np.nan
    np.save(path, image)
    known = open_recordings(tmp_path)[0].known()
    assert (~known).nonzero().tolist() == [[0, 95, 5]]
    with pytest.raises(SourceError, match=r"image.npy: it holds values that are not finite"):
        open_pairs(tmp_path).image(0)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros((64, 64, 3), "f4"),
            r"shape \(96, 128, 3\), found float32 of shape \(64, 64",
        ),
        (np.zeros((96, 128, 3)), "found float64"),
        (np.array([None]), "Python objects"),
    ],
)
def test_a_wrong_image_is_named(tmp_path: Path, array: np.ndarray, message: str) -> None:
    write_pair(tmp_path / "val_paired0")
    np.save(tmp_path / "val_paired0" / "image.npy", array, allow_pickle=True)
    for read in (lambda: open_pairs(tmp_path).image(0), lambda: open_recordings(tmp_path)[0]):
        with pytest.raises(SourceError, match=message) as caught:
            read()
        assert "val_paired0/image.npy" in str(caught.value)


def test_a_truncated_or_missing_spectrum_is_named(tmp_path: Path) -> None:
    write_pair(tmp_path / "val_paired0")
    path = tmp_path / "val_paired0" / "spectra.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(SourceError, match=r"spectra.npy: expected an array of numbers"):
        open_pairs(tmp_path).spectrum(0)
    path.unlink()
    with pytest.raises(SourceError, match=r"spectra.npy: there is no such file"):
        open_pairs(tmp_path).spectrum(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "tabel"}, "missing tabel; it holds: table"),
        ({"columns": ("a", "b")}, r"rows of 2 numbers \(a, b\) at 'table', found shape \(20, 7\)"),
        ({"names_key": "table"}, "expected texts at 'table', found float32"),
        ({"path": Path("nowhere.npz")}, "nowhere.npz: there is no such file"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        with_settings(tmp_path, **change)


def test_rows_of_settings_must_match_the_samples(tmp_path: Path) -> None:
    table = write_pairs(tmp_path / "pairs")
    path = tmp_path / "s.npz"
    file = SettingsFile(path=path, key="table")
    np.savez(path, table=table[:-1])
    with pytest.raises(SourceError, match=r"each of 20 samples at 'table', found 19; name the"):
        open_pairs(tmp_path / "pairs", file)
    np.savez(path, table=table, names=[f"sample{i}" for i in range(20)])
    with pytest.raises(SourceError, match=r"no row for 20 of 20 samples, the first is 'train_pair"):
        open_pairs(tmp_path / "pairs", replace(file, names_key="names"))
    table[3, 2] = np.nan
    np.savez(path, table=table)
    with pytest.raises(SourceError, match="'table' holds values that are not finite"):
        open_pairs(tmp_path / "pairs", file)


# Fields


def test_a_run_of_the_authors_form_comes_with_named_channels(tmp_path: Path) -> None:
    write_run(tmp_path / "train" / "run7.h5", seed=2)
    write_run(tmp_path / "val" / "run7.h5")
    assert recognise(tmp_path / "train") and recognise(tmp_path / "train" / "run7.h5")
    recordings = open_recordings(tmp_path, Hints(shape=(10, 20)))
    assert recordings.names == ("train_run7", "val_run7")
    run = recordings[0]
    assert run.spec.channels == ("ne", "Te", "V", "T", *(f"n_{name}" for name in sorted(SPECIES)))
    assert list(run.parameters.values()) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert run.time.tolist() == [0.0, 0.5, 1.0]
    x, y = run.spec.grid.coordinates(torch.float64)
    known = run.known()
    assert known.float().mean() > 0.9
    for t in range(3):
        expected = 300 + 100 * x - 50 * y + t  # linear interpolation keeps it
        found = run.read()[t, 3].double()
        torch.testing.assert_close(found[known[t]], expected[known[t]], rtol=1e-5, atol=0)
    assert "gridding" in run.local and set(run.spec.units) == {"unknown"}


def test_t_is_mapped_from_the_other_fields_of_the_same_time(tmp_path: Path) -> None:
    write_run(tmp_path / "a.h5")
    write_run(tmp_path / "b.h5", seed=1)
    runs = list(open_recordings(tmp_path, Hints(shape=(8, 12))))
    window = Window(horizon=0, targets=("T",))
    samples = Samples(runs, window=window, normalizer=Normalizer.identity(7))
    assert len(samples) == 6
    assert [run.parameters["condition_1"] for run in runs] == [0.0, 1.0]
    batch = samples[4]
    assert tuple(batch.x.shape) == (1, 6, 8, 12) and tuple(batch.y.shape) == (1, 1, 1, 8, 12)
    torch.testing.assert_close(batch.y[0, 0, 0], runs[1].read()[1, 3].nan_to_num(0.0))
    write(tmp_path / "native.hdf", runs)
    check(tmp_path / "native.hdf")


def table_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = ("density", "heat", "species/Ar", "species/O2")
    return {name: rng.random((5, 4, 6)) for name in names} | {"knobs": rng.random((5, 2))}


TABLE = FieldKeys(
    channels={"ne": "density", "T": "heat"},
    species="species",
    conditions="knobs",
    condition_names=("power", "pressure"),
)


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".mat", "-v73.mat"])
def test_a_table_gives_one_frame_per_entry(tmp_path: Path, suffix: str) -> None:
    arrays = table_arrays()
    path, keys = tmp_path / f"table{suffix}", TABLE
    if suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    elif suffix == ".mat":
        from scipy.io import savemat

        savemat(path, {key: array for key, array in arrays.items() if "/" not in key})
        keys = replace(TABLE, species=None)
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array.T if suffix == "-v73.mat" else array
    hints = Hints(dx=0.5, dy=0.25, length_unit="m")
    recordings = sources.open_recordings(path, "icp", hints, {"keys": keys})
    assert len(recordings) == 5
    for i, entry in enumerate(recordings):
        assert entry.num_frames == 1 and (entry.spec.grid.dx, entry.spec.grid.dy) == (0.5, 0.25)
        np.testing.assert_array_equal(entry.read()[0, 1].numpy(), arrays["heat"][i].astype("f4"))
        assert entry.parameters == dict(zip(("power", "pressure"), arrays["knobs"][i], strict=True))
        assert entry.source["entry"] == i
    if keys.species:
        assert recordings[0].spec.channels == ("ne", "T", "n_Ar", "n_O2")


def test_a_missing_value_of_a_field_is_not_valid(tmp_path: Path) -> None:
    arrays = table_arrays()
    arrays["heat"][2, 1, 3] = np.nan
    np.savez(tmp_path / "table.npz", **arrays)  # type: ignore[arg-type]
    recordings = open_fields(tmp_path, TABLE)
    assert (~recordings[2].known()).nonzero().tolist() == [[0, 1, 3]]
    assert bool(recordings[1].known().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": {"T": "temperature"}}, "missing temperature; it holds: density, few, heat"),
        ({"species": "gases"}, r"missing gases/\*; it holds: density"),
        ({"channels": {"T": "knobs"}}, "of one shape"),
        (
            {"channels": {"T": "heat", "x": "short"}},
            r"found \(5, 4, 5\) at 'short' beside",
        ),
        ({"channels": {"T": "text"}}, "expected numbers at 'text', found <U2"),
        ({"condition_names": ("power",)}, "expected 1 finite numbers at 'knobs', per run or per"),
        ({"conditions": "few"}, r"expected 2 finite numbers at 'few', .* found \(2, 2\)"),
        ({"positions": "knobs"}, r"expected 6 positions \(n, 2\) at 'knobs'"),
    ],
)
def test_keys_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "table.npz"
    others = {"short": np.zeros((5, 4, 5)), "text": np.array(["ab"]), "few": np.zeros((2, 2))}
    np.savez(path, **table_arrays(), **others)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=message) as caught:
        open_fields(path, replace(TABLE, **change))[4]
    assert str(path) in str(caught.value)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".h5"):
        (tmp_path / f"run{suffix}").touch()
    with pytest.raises(SourceError, match="two files are called 'run'"):
        open_fields(tmp_path)


def test_a_file_of_other_fields_lists_what_it_holds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["velocity/u"] = np.zeros((2, 3))
    assert not recognise(tmp_path)
    with pytest.raises(SourceError, match=r"missing state/ne, .*; it holds: velocity/u"):
        open_recordings(tmp_path)[0]


@pytest.mark.parametrize("suffix", [".h5", ".mat", ".npz"])
@pytest.mark.parametrize("content", [b"", b"no such thing" * 100])
def test_a_foreign_or_empty_file_is_named(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    assert not recognise(path)
    with pytest.raises(SourceError, match=f"broken{suffix}: expected"):
        open_fields(path, AUTHORS)[0]


def test_a_truncated_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    write_run(path)
    path.write_bytes(path.read_bytes()[:4000])
    assert not recognise(path)
    with pytest.raises(SourceError, match=r"run.h5: expected an HDF5 file"):
        open_recordings(path)[0]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert not recognise(tmp_path) and not recognise(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="expected sample folders such as train_paired000000"):
        open_pairs(tmp_path)
    with pytest.raises(SourceError, match=r"expected files .h5"):
        open_recordings(tmp_path)
