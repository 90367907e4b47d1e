"""RealPDEBench: Arrow and raw HDF5 files, published splits, damaged data."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data import readers
from pibert.data.dataset import Samples, Window
from pibert.data.format import check, write
from pibert.data.readers.realpdebench import (
    open_recordings,
    published_split,
    read_index,
    recognise,
)
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.splits import Segment
from pibert.fields import Normalizer
from tests.helpers import refused
from tests.lookalikes.realpdebench import (
    CYLINDERS,
    TANDEMS,
    Flow,
    flows,
    values,
    write_arrow,
    write_competition,
    write_index,
    write_parameters,
    write_raw,
    write_root,
)

pytest.importorskip("pyarrow")

SHAPE = (50, 16, 32)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("hub") / "data", frames=120)


def arrow(tmp_path: Path, data: Sequence[Flow], **layout: Any) -> Path:
    folder = tmp_path / "cylinder" / "hf_dataset" / "real"
    write_arrow(folder, data, **layout)
    return folder


def stored(name: str, number: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.from_numpy(values(name, number, shape))


# Finding


def test_every_form_of_the_root_is_recognised_and_opened(root: Path) -> None:
    for path in (
        root,
        root / "cylinder",
        root / "cylinder" / "hf_dataset",
        root / "cylinder" / "hf_dataset" / "real",
        root / "cylinder" / "hf_dataset" / "real" / "data-00001-of-00004.arrow",
    ):
        assert recognise(path)
        recordings = open_recordings(path, scenario="cylinder", kind="real")
        assert recordings["5000"].source["scenario"] == "cylinder"
        assert recordings["5000"].source["kind"] == "measured"


# Reading


@pytest.mark.parametrize("per_shard", [(1, 1), (2, 1), (3, 3)])
def test_every_frame_and_channel_is_read_from_its_row(
    tmp_path: Path, per_shard: tuple[int, int]
) -> None:
    data = flows(CYLINDERS, SHAPE)
    folder = arrow(
        tmp_path, data, rows_per_shard=per_shard[0], rows_per_batch=per_shard[1], empty_shard=True
    )
    recordings = open_recordings(folder)
    assert recordings.names == CYLINDERS
    for number, trajectory in enumerate(recordings):
        assert trajectory.spec.channels == ("u", "v")
        whole = torch.stack([stored("u", number), stored("v", number)], 1)
        assert torch.equal(trajectory.read(), whole)
        assert torch.equal(trajectory.read(slice(7, 31, 4), [1]), whole[7:31:4, 1:])
        assert torch.equal(trajectory.read(slice(-2, None), [1, 0]), whole[-2:, [1, 0]])
    (folder / "state.json").unlink()
    assert open_recordings(folder).names == CYLINDERS


def test_a_file_that_was_replaced_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    folder = arrow(tmp_path, flows(CYLINDERS, SHAPE))
    travelling = pickle.dumps(open_recordings(folder)[0])
    arrow(tmp_path, flows(CYLINDERS, (60, 16, 32)))
    with pytest.raises(SourceError, match="replaced after opening"):
        pickle.loads(travelling).read()


def test_points_that_are_not_finite_are_not_valid(tmp_path: Path) -> None:
    u = values("u", 0, SHAPE)
    u[3, 2, 20] = np.nan
    flow = Flow(name="1800", shape=SHAPE, changes={"u": u.tobytes()})
    trajectory = open_recordings(arrow(tmp_path, [flow]))[0]
    known = trajectory.known(slice(2, 5))
    fluid = known[0].sum()
    assert [int(fluid - frame.sum()) for frame in known] == [0, 1, 0] and not known[1, 2, 20]
    write(tmp_path / "native.h5", [trajectory])
    check(tmp_path / "native.h5")


# Published facts


def test_names_hold_the_parameters(root: Path) -> None:
    cylinder = open_recordings(root, scenario="cylinder", kind="real")["12000"]
    assert cylinder.parameters == {"Re": 12000.0}
    assert cylinder.spec.parameters[0].scaling == "log"
    tandem = open_recordings(root, scenario="fsi", kind="real")["4091_20.8_0.8_2"]
    assert tandem.parameters == {"Re": 4091.0, "mass_ratio": 20.8, "damping": 0.8}
    assert tandem.source["repeat"] == 2 and tandem.spec.family == "incompressible"


def test_the_body_of_the_measured_cylinder(tmp_path: Path) -> None:
    """A published measurement has 64 * 128 - 253 vectors; 253 points lie within 9 of the centre."""
    data = [Flow(name="1800", shape=(2, 64, 128)), Flow(name="1801", shape=(2, 128, 256))]
    measured, simulated = (t.body for t in open_recordings(arrow(tmp_path, data)))
    assert isinstance(measured, torch.Tensor) and isinstance(simulated, torch.Tensor)
    assert measured.sum() == 253
    assert measured[32, 23:42].all() and not measured[32, 22] and not measured[32, 42]
    assert measured[23:42, 32].all() and not measured[22, 32] and not measured[42, 32]
    assert torch.equal(simulated[::2, ::2], measured)


def test_the_elastic_cylinder_is_at_rest_and_another_view_has_no_body(tmp_path: Path) -> None:
    folder = tmp_path / "fsi" / "hf_dataset" / "real"
    write_arrow(folder, flows(TANDEMS[:1], (2, 128, 128), "fsi"))
    recordings = open_recordings(folder)
    body = recordings[0].body
    assert isinstance(body, torch.Tensor)
    assert body[64, 54:79].all() and not body[64, 53] and not body[64, 79]
    assert any("at rest" in note for note in recordings.notes)
    other = open_recordings(arrow(tmp_path, [Flow(name="1800", shape=(2, 20, 32))]))
    assert other[0].body is None and any("no body" in note for note in other.notes)


def test_rows_stored_from_the_top_are_reversed(tmp_path: Path) -> None:
    flow = Flow(name="1800", shape=(2, 64, 128), dx=0.5, dy=-0.25)
    recordings = open_recordings(arrow(tmp_path, [flow]))
    trajectory, body = recordings[0], recordings[0].body
    assert torch.equal(trajectory.read()[:, 0], stored("u", 0, (2, 64, 128)).flip(1))
    assert trajectory.spec.grid.origin == (0.0, -63 * 0.25)
    assert trajectory.spec.grid.dy == 0.25 and trajectory.spec.grid.dx == 0.5
    assert trajectory.length_unit is None  # not stated: guessed in a note at most
    assert isinstance(body, torch.Tensor)
    assert body[63 - 41 : 63 - 22, 32].all() and body[:, 32].sum() == 19
    assert any("rows were reversed" in note for note in recordings.notes)


def test_an_unknown_scenario_leaves_everything_unknown(tmp_path: Path) -> None:
    write_arrow(tmp_path / "mine", [Flow(name="1800", shape=SHAPE, axes=())])
    trajectory = open_recordings(tmp_path / "mine")[0]
    assert trajectory.parameters == {} and trajectory.spec.dt is None and trajectory.body is None
    assert trajectory.source["kind"] is None and trajectory.length_unit == "px"
    assert trajectory.spec.family is None
    burning = readers.open_recordings(tmp_path / "mine", options={"scenario": "combustion"})[0]
    assert burning.spec.family is None and burning.local["family"].startswith("none")
    named = open_recordings(tmp_path / "mine", scenario="cylinder", kind="real")[0]
    assert named.parameters == {"Re": 1800.0} and named.spec.dt == 2.5e-3


# Raw HDF5


def test_raw_and_arrow_files_give_the_same_trajectories(tmp_path: Path) -> None:
    data = flows(CYLINDERS[:2], SHAPE, dx=0.5, dy=0.25)
    write_raw(tmp_path / "raw" / "cylinder" / "real", data)
    raw = open_recordings(tmp_path / "raw", scenario="cylinder")
    arrows = open_recordings(arrow(tmp_path, data))
    assert raw.names == ("1800", "5000") and raw.notes == arrows.notes
    for one, other in zip(raw, arrows, strict=True):
        assert torch.equal(one.read(slice(2, 9, 3), [1]), other.read(slice(2, 9, 3), [1]))
        assert one.spec == other.spec and one.source == other.source
        assert torch.equal(one.time, other.time)
    hints = Hints(channels={"omega": "vo"})
    (single,) = open_recordings(tmp_path / "raw" / "cylinder" / "real" / "5000.h5", hints)
    assert single.spec.channels == ("u", "v", "omega")
    assert torch.equal(single.read()[:, 2], stored("vo", 1))


# Bad input


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    folder = arrow(tmp_path, flows(CYLINDERS, SHAPE))
    path = folder / "data-00002-of-00004.arrow"
    whole = path.read_bytes()
    for length in (len(whole) - 5000, 0):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=path.name):
            open_recordings(folder)
    path.unlink()
    with pytest.raises(SourceError, match="missing, such as data-00002"):
        open_recordings(folder)
    (folder / "state.json").unlink()  # the list of shards
    with pytest.raises(SourceError, match=r"1 of 4 shards.*00002-of-00004.*pibert download"):
        open_recordings(folder)


COUNT = 4 * 50 * 16 * 32


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"v": bytes(COUNT - 4)}, ("data-00000", "row 1, column 'v'", str(COUNT), str(COUNT - 4))),
        ({"shape_h": None}, ("positive whole numbers",)),
        ({"sim_id": "1800.h5"}, ("'1800'",)),
    ],
)
def test_wrong_cells_are_refused(
    tmp_path: Path, changes: dict[str, Any], found: tuple[str, ...]
) -> None:
    data = flows(CYLINDERS[:2], SHAPE)
    data[1] = replace(data[1], changes=changes)
    folder = arrow(tmp_path, data, rows_per_shard=2)
    with refused(*found, error=SourceError):
        open_recordings(folder)["5000"]


# Published splits


def test_an_index_becomes_the_published_windows(tmp_path: Path) -> None:
    folder = arrow(tmp_path, flows(CYLINDERS, SHAPE))
    index = {
        "test": [("8000", 3), ("1800", 0), ("8000", 10)],
        "train": [("5000", 2)],
        "val": [("1800", 10)],
    }
    write_index(tmp_path / "cylinder", index)
    recordings = open_recordings(folder)
    assert read_index(tmp_path / "cylinder", "test", "real") == index["test"]
    assert recordings.published_split is not None
    split = recordings.published_split()
    window = Window(history=20, horizon=20)
    samples = Samples(
        list(recordings), split.test, window=window, normalizer=Normalizer.identity(2)
    )
    assert [samples.locate(i) for i in range(len(samples))] == [(2, 3), (0, 0), (2, 10)]
    assert split.train == (Segment(1, 2, 42),) and split.valid == (Segment(0, 10, 50),)
    pairs = published_split(folder, {name: 50 for name in CYLINDERS}, window=2)
    assert pairs.test == (Segment(2, 3, 5), Segment(0, 0, 2), Segment(2, 10, 12))
    with refused("window", "2 to 40", "found 41"):
        published_split(folder, {name: 50 for name in CYLINDERS}, window=41)
    write_index(tmp_path / "cylinder", {"val": [("1800", 10), ("5000", 11)]})
    with refused("11 to 50", "'5000'", "has 50", error=SourceError):
        recordings.published_split()
    (tmp_path / "cylinder" / "hf_dataset" / "train_index_real.json").unlink()
    with pytest.raises(SourceError, match="train_index_real.json: there is no such file"):
        recordings.published_split()


def test_modes_choose_by_the_group_of_the_trajectory(tmp_path: Path) -> None:
    folder = arrow(tmp_path, flows(CYLINDERS, SHAPE)).parents[1]
    write_parameters(folder, remain=["5000", "8000"], in_dist=["1800"], out_dist=["12000"])
    everything = [(name, 0) for name in CYLINDERS]
    write_index(folder, {"train": everything, "val": everything, "test": everything})

    def chosen(mode: Any) -> list[str]:
        recordings = open_recordings(folder, test_mode=mode)
        assert recordings.published_split is not None
        split = recordings.published_split()
        assert len(split.train) == 4 and split.valid == split.test
        return [recordings.names[segment.trajectory] for segment in split.test]

    assert chosen("all") == list(CYLINDERS)
    assert chosen("seen") == ["5000", "8000"]
    assert chosen("in_dist") == ["1800"] and chosen("out_dist") == ["12000"]
    assert chosen("unseen") == ["1800", "12000"]
    (folder / "in_dist_test_params_real.json").unlink()
    assert chosen("unseen") == ["12000"]
    with refused("in_dist_test_params_real.json", error=SourceError):
        chosen("in_dist")
    with pytest.raises(ValueError, match="test_mode: .*out_dist.*found 'outer'"):
        chosen("outer")


def test_every_second_point_is_taken_as_the_publishers_take_it(tmp_path: Path) -> None:
    folder = arrow(tmp_path, flows(CYLINDERS[:1], (50, 16, 32), dx=0.5, dy=0.25))
    whole, thin = (open_recordings(folder, every=n)[0] for n in (1, 2))
    assert torch.equal(thin.read(), whole.read()[..., ::2, ::2])
    assert torch.equal(thin.known(), whole.known()[..., ::2, ::2])
    assert thin.spec.grid.shape == (8, 16)
    assert (thin.spec.grid.dx, thin.spec.grid.dy) == (1.0, 0.5)
    with pytest.raises(ValueError, match="every: .*found 0"):
        open_recordings(folder, every=0)


def test_the_competitions_files_are_read(tmp_path: Path) -> None:
    write_competition(tmp_path / "train_real", ("5025_0", "7575_0", "8850_15"), frames=6)
    write_competition(tmp_path / "train_sim", ("5025_0",), frames=6)
    with h5py.File(tmp_path / "train_sim" / "5025_0.h5", "a") as h5:
        h5["p"] = h5["u"][:]
    assert readers.identify(tmp_path / "train_real") == "realpdebench"
    measured = open_recordings(tmp_path, kind="real")
    assert measured.names == ("5025_0", "8850_15") and measured.published_split is None
    assert any("7575_0 is left out" in note for note in measured.notes)
    flow = measured[1]
    assert dict(flow.parameters) == {"Re": 8850.0, "angle": 15.0}
    assert flow.spec.dt == pytest.approx(0.02, rel=1e-5) and flow.time_unit == "s"
    assert int((~flow.known()[0]).sum()) == 24 and not bool(flow.known()[0, 2, 3])
    simulated = open_recordings(tmp_path / "train_sim")
    assert simulated[0].spec.channels == ("u", "v", "p") and bool(simulated[0].known().all())
    with pytest.raises(SourceError, match="more than one set"):
        open_recordings(tmp_path)


@pytest.mark.parametrize("text", ["[", "{}", "[3]", '[{"sim_id": "1800.h5"}]'])
def test_broken_index_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hf_dataset").mkdir()
    (tmp_path / "hf_dataset" / "val_index_real.json").write_text(text)
    with pytest.raises(SourceError, match="val_index_real.json: "):
        read_index(tmp_path, "val", "real")
