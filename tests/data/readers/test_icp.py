"""ICP plasma data: image and spectrum pairs, and fields by name."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pibert.data import readers
from pibert.data.readers.icp import (
    SETTINGS,
    Pairs,
    open_pairs,
    open_recordings,
    recognise,
)
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.metadata import family_note
from tests.lookalikes.icp import SPECIES, write_pair, write_pairs, write_run

COLOURS = ("red", "green", "blue")


def with_settings(folder: Path) -> Pairs:
    table = write_pairs(folder).tolist()
    names = [f"train_paired{sample:06d}" for sample in range(len(table))]
    return open_pairs(folder, dict(zip(names, table, strict=True)))


# Pairs


def test_images_and_spectra_are_read_as_stored(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    pairs = open_pairs(tmp_path)
    assert len(pairs) == 20 and pairs.names[3] == "train_paired000003"
    for index in (2, 3):  # the second has a spectrum of shape (3072, 1)
        folder = tmp_path / pairs.names[index]
        np.testing.assert_array_equal(pairs.image(index).numpy(), np.load(folder / "image.npy"))
        stored = np.load(folder / "spectra.npy").ravel()
        np.testing.assert_array_equal(pairs.spectrum(index).numpy(), stored)
    assert open_pairs(tmp_path / pairs.names[3]).names == (pairs.names[3],)


def test_an_image_is_a_trajectory_of_one_frame(tmp_path: Path) -> None:
    pairs = with_settings(tmp_path)
    assert recognise(tmp_path)
    recordings = open_recordings(tmp_path, settings=pairs.settings)
    trajectory = recordings["train_paired000006"]
    image = pairs.image(6)
    # Row 0 of a trajectory is the bottom, that of an image the top.
    assert torch.equal(trajectory.read()[0], image.flip(0).movedim(-1, 0))
    assert torch.equal(trajectory.read(channels=[2])[0, 0], image[..., 2].flip(0))
    assert trajectory.spec.channels == COLOURS and trajectory.spec.family is None
    values = pairs.settings["train_paired000006"]
    assert trajectory.parameters == dict(zip(SETTINGS, values, strict=True))
    assert trajectory.source["split"] == "train"
    opened = readers.open_recordings(tmp_path, "icp")[0]
    assert "no PDE family is stated" in str(family_note(opened))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((64, 64, 3), "f4"), r"\(96, 128, 3\), found float32 of shape \(64, 64"),
        (np.array([None]), "Python objects"),
    ],
)
def test_wrong_images_and_spectra_are_refused(
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


# Fields


def test_a_run_has_named_channels_and_conditions(tmp_path: Path) -> None:
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


def _replace(key: str, data: np.ndarray) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[key]
        file[key] = data

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.__delitem__("state/T"), "missing state/T; it holds: conditions"),
        (_replace("state/te", np.zeros((1, 3, 53))), r"'state/te', found float64 of .*53\)"),
        (_replace("conditions", np.array([np.nan])), "finite conditions"),
    ],
)
def test_a_damaged_run_is_refused(
    tmp_path: Path, change: Callable[[h5py.File], None], message: str
) -> None:
    path = tmp_path / "run.h5"
    write_run(path)
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(SourceError, match=f"run.h5: .*{message}"):
        open_recordings(path)[0]
