"""HDF5 files that refer to other files, and files that are not complete."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from pibert.data.hdf5 import HDF5Error, check_foreign
from pibert.data.partial import replace_file
from pibert.data.readers import open_recordings
from tests.fuzz.corpus import CORPUS, HDF5
from tests.fuzz.hdf5 import WAYS, lead_out, write_secret
from tests.helpers import refused, small_disk


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HDF5)
def test_no_reader_follows_an_hdf5_file_to_another_file(
    name: str, way: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    CORPUS[name](path)
    open_recordings(path)[0].read()
    lead_out(path, way)
    with pytest.raises(ValueError, match="another file|elsewhere in it|is a link") as found:
        for trajectory in open_recordings(path):
            trajectory.read()
    assert str(path) in str(found.value)


def test_a_reference_of_a_matlab_cell_to_external_storage_is_refused(tmp_path: Path) -> None:
    """A reference may lead to a data set that no group lists."""
    path = tmp_path / "pivlab.mat"
    CORPUS["pivlab73.mat"](path)
    write_secret(tmp_path / "secret")
    with h5py.File(path, "r+") as file:
        hidden = file.create_dataset(
            "hidden", (6, 4), "f8", external=[(tmp_path / "secret", 0, 192)]
        )
        references = file["u_filtered"][()]
        references[0, 0] = hidden.ref
        file["u_filtered"][...] = references
        del file["hidden"]
        file.flush()
        # While it is open the data set stays in the file.
        shutil.copy(path, tmp_path / "hidden.mat")
    with pytest.raises(HDF5Error, match="stored in another file"):
        open_recordings(tmp_path / "hidden.mat", "piv")


@pytest.mark.parametrize("chunks", [None, (1, 30_000)])
def test_a_declared_but_unwritten_data_set_is_refused(
    chunks: tuple[int, int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "empty.h5"
    with h5py.File(path, "w") as file:
        for name in ("u", "v"):
            file.create_dataset(name, (30_000, 30_000), "f4", chunks=chunks)
    with refused("3600 MB", "0 MB", error=HDF5Error):
        open_recordings(path)


def test_a_sent_file_has_limits(tmp_path: Path) -> None:
    path = tmp_path / "sent.h5"
    with h5py.File(path, "w") as file:
        file["u"] = np.zeros(1000)
    check_foreign(path, 8000)
    with refused("at most 0 MB", error=HDF5Error):
        check_foreign(path, 7999)
    (tmp_path / "text").write_text("no HDF5")
    check_foreign(tmp_path / "text", 1)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    for content in (b"another", b"one"):
        replace_file(path, content)
    with small_disk(100), pytest.raises(OSError, match="File too large"):
        replace_file(path, bytes(1000))
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.json"]
