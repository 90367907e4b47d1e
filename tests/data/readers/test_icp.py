"""ICP plasma data: image and spectrum pairs, and fields by name."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data import readers
from pibert.data.format import check, write
from pibert.data.readers.icp import (
    SETTINGS,
    TITLE,
    FieldKeys,
    Pairs,
    SettingsFile,
    open_fields,
    open_pairs,
    open_recordings,
    recognise,
    split_pairs,
)
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.metadata import family_note
from pibert.data.splits import Shares
from tests.lookalikes.icp import SPECIES, write_pair, write_pairs, write_run

COLOURS = ("red", "green", "blue")


def with_settings(tmp_path: Path, **changes: Any) -> Pairs:
    settings = write_pairs(tmp_path / "pairs")
    np.savez(tmp_path / "settings.npz", table=settings)
    file = SettingsFile(path=tmp_path / "settings.npz", key="table")
    return open_pairs(tmp_path / "pairs", replace(file, **changes))


# Pairs


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
    opened = readers.open_recordings(tmp_path / "pairs", "icp")[0]
    assert "no PDE family is stated" in str(family_note(opened))
    with pytest.raises(SourceError, match="no channel u=red; data of this kind have: red=red"):
        open_recordings(tmp_path / "pairs", Hints(channels={"u": "red"}))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((64, 64, 3), "f4"), r"\(96, 128, 3\), found float32 of shape \(64, 64"),
        (np.zeros((96, 128, 3)), "float64"),
        (np.array([None]), "Python objects"),
    ],
)
def test_a_wrong_image_or_spectrum_is_named(
    tmp_path: Path, array: np.ndarray, message: str
) -> None:
    write_pair(tmp_path / "val_paired0")
    image, spectrum = (tmp_path / "val_paired0" / f"{name}.npy" for name in ("image", "spectra"))
    np.save(image, array, allow_pickle=True)
    for read in (lambda: open_pairs(tmp_path).image(0), lambda: open_recordings(tmp_path)[0]):
        with pytest.raises(SourceError, match=f"val_paired0/image.npy: .*{message}"):
            read()
    values = np.ones((96, 128, 3), "f4")
    values[0, 5, 1] = np.nan
    np.save(image, values)
    assert (~open_recordings(tmp_path)[0].known()).nonzero().tolist() == [[0, 95, 5]]
    with pytest.raises(SourceError, match="image.npy: .*not finite"):
        open_pairs(tmp_path).image(0)
    spectrum.write_bytes(spectrum.read_bytes()[:-4])
    with pytest.raises(SourceError, match="spectra.npy"):
        open_pairs(tmp_path).spectrum(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "tabel"}, "tabel; it holds: table"),
        ({"columns": ("a", "b")}, r"\(a, b\) at 'table', found shape \(20, 7\)"),
        ({"names_key": "table"}, "'table', found float32"),
        ({"path": Path("nowhere.npz")}, "nowhere.npz"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        with_settings(tmp_path, **change)


def test_rows_of_settings_must_match_the_samples(tmp_path: Path) -> None:
    table, path = write_pairs(tmp_path / "pairs"), tmp_path / "s.npz"
    with pytest.raises(ValueError, match="give their file"):
        split_pairs(open_pairs(tmp_path / "pairs"), Shares(), seed=0)
    named = SettingsFile(path=path, key="table", names_key="names")
    names = [f"sample{i}" for i in range(20)]
    for file, content, found in (
        (replace(named, names_key=None), table[:-1], "20 samples .*found 19"),
        (named, table, "no row for 20 of 20"),
        (replace(named, names_key=None), table * np.nan, "not finite"),
    ):
        np.savez(path, table=content, names=names)
        with pytest.raises(SourceError, match=found):
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
    write(tmp_path / "native.hdf", list(recordings))
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": {"T": "temperature"}}, "temperature; it holds: density, few, heat"),
        ({"species": "gases"}, r"gases/\*; it holds: density"),
        ({"channels": {"T": "heat", "x": "short"}}, r"\(5, 4, 5\) at 'short'"),
        ({"channels": {"T": "text"}}, "'text', found <U2"),
        ({"condition_names": ("power",)}, "1 finite numbers at 'knobs'"),
        ({"conditions": "few"}, r"'few', .* found \(2, 2\)"),
        ({"positions": "knobs"}, r"6 positions \(n, 2\) at 'knobs'"),
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


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert not recognise(tmp_path) and not recognise(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="expected sample folders such as train_paired000000"):
        open_pairs(tmp_path)
    with pytest.raises(SourceError, match=r"expected files .h5"):
        open_recordings(tmp_path)
