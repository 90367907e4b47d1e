"""Files of patterns, and which of them are frames of one trajectory."""

from pathlib import Path

import pytest

from pibert.data.convert import refuse_overwriting
from pibert.data.format import write
from pibert.data.sources import identify, open_recordings
from pibert.data.sources.numbered import expand_pattern, group_by_number
from pibert.data.sources.recordings import SourceError
from tests.data.helpers import make_trajectory
from tests.lookalikes.piv import sample, write_davis


def write_at(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_davis(path, sample(), decimal_comma=False)


def test_a_pattern_reaches_into_folders(tmp_path: Path) -> None:
    write_at(*(tmp_path / f"run{run}" / f"B{frame}.txt" for run in (1, 2) for frame in (1, 2, 3)))
    recordings = open_recordings(tmp_path / "run*" / "B*.txt")
    assert recordings.names == ("run1-B", "run2-B")
    assert [flow.num_frames for flow in recordings] == [3, 3]
    recordings = open_recordings(tmp_path / "*" / "B1.txt")
    assert recordings.names == ("run1-B1", "run2-B1")
    assert len(open_recordings(tmp_path / "run?" / "B[12].txt")[0].time) == 2


def test_numbered_folders_are_frames(tmp_path: Path) -> None:
    for folder in ("9", "10", "11"):
        write_at(tmp_path / "piv" / folder / "field.txt")
    (flow,) = open_recordings(tmp_path / "piv" / "*" / "field.txt")
    assert flow.name == "field" and flow.num_frames == 3
    files = expand_pattern(tmp_path / "piv" / "*" / "field.txt")
    assert list(group_by_number(files)["field"]) == [9, 10, 11]
    write_at(tmp_path / "other" / "a" / "field.txt", tmp_path / "other" / "b" / "field.txt")
    names = open_recordings(tmp_path / "other" / "*" / "field.txt").names
    assert names == ("a-field", "b-field")


def test_folders_named_by_decimal_numbers_are_refused(tmp_path: Path) -> None:
    write_at(*(tmp_path / time / "U.txt" for time in ("0.1", "0.15", "0.2")))
    with pytest.raises(SourceError, match="named by a decimal number"):
        open_recordings(tmp_path / "*" / "U.txt")


def test_native_files_of_several_folders_are_one_set(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "flow.h5", [make_trajectory("x")])
    pattern = tmp_path / "*" / "flow.h5"
    assert identify(pattern) == "native"
    assert open_recordings(pattern).names == ("a-flow-x", "b-flow-x")
    with pytest.raises(ValueError, match="is the input or a part of it"):
        refuse_overwriting(pattern, tmp_path / "b" / "flow.h5")


def test_brackets_in_the_name_of_a_folder_that_is_there_are_no_pattern(tmp_path: Path) -> None:
    write_at(tmp_path / "run[1]" / "B1.txt", tmp_path / "run[1]" / "B2.txt")
    (flow,) = open_recordings(tmp_path / "run[1]" / "B*.txt")
    assert flow.num_frames == 2
    with pytest.raises(FileNotFoundError, match="there is no such file that fits"):
        open_recordings(tmp_path / "nothing*" / "B1.txt")
