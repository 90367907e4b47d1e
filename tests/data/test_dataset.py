"""Training samples: windows, their content and order, worker processes, samples on a device."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data import resident
from pibert.data.dataset import BatchOrder, Samples, Window, common_spec, make_loader
from pibert.data.format import Reader, write
from pibert.data.normalize import fit_normalizer, fit_parameters
from pibert.data.resample import represent
from pibert.data.resident import ResidentLoader
from pibert.data.splits import Segment, Shares, split_in_time, split_trajectories
from pibert.fields import Normalizer, Trajectory
from tests.data.helpers import assert_same_batch, disc, make_trajectory, random_states
from tests.helpers import refused

PLAIN = Normalizer.identity(2)


def numbered(name: str, frames: int, first: int) -> Trajectory:
    """Every value of frame t is first + t."""
    states = first + torch.arange(float(frames))[:, None, None, None].expand(frames, 2, 5, 7)
    return make_trajectory(name, states=states.clone())


def frame_numbers(samples: Samples) -> list[list[int]]:
    batch = samples.batch(range(len(samples)))
    x = batch.x.unflatten(1, (samples.window.history, 2))
    return [[int(v) for v in row] for row in torch.cat((x, batch.y), 1)[:, :, 0, 0, 0]]


def test_windows_never_cross_missing_frame_numbers() -> None:
    time = torch.tensor([0, 1, 2, 4, 5, 6], dtype=torch.float64)
    counted = make_trajectory(time=time, dt=None, time_unit=None)
    samples = Samples([counted], window=Window(), normalizer=PLAIN)
    assert [samples.locate(n)[1] for n in range(len(samples))] == [0, 1, 3, 4]
    uneven = replace(counted, time=time**2)
    assert len(Samples([uneven], window=Window(), normalizer=PLAIN)) == 5


def test_windows_never_cross_a_gap_in_time() -> None:
    """Pairs every ten frames, then three frames in a row."""
    bursts = 0.05 * torch.tensor([0, 1, 10, 11, 20, 21, 22], dtype=torch.float64)
    data = [numbered("whole", 3, 0), replace(numbered("bursts", 7, 10), time=bursts)]
    samples = Samples(data, window=Window(), normalizer=PLAIN)
    pairs = [[10, 11], [12, 13], [14, 15], [15, 16]]
    assert frame_numbers(samples) == [[0, 1], [1, 2], *pairs]
    assert samples.locate(3) == (1, 2)
    part = Samples(data, [Segment(1, 1, 6)], window=Window(), normalizer=PLAIN)
    assert frame_numbers(part) == pairs[1:3]
    with refused("4 frames", "4 segments"):
        Samples(data, window=Window(history=3), normalizer=PLAIN)


def test_the_cylinder_split_of_the_paper() -> None:
    """92 recordings of 3990 frames, every 20th: 200 frames and 199 pairs each."""
    states = torch.zeros(3990, 2, 1, 2)
    data = [
        represent(make_trajectory(str(i), states=states), stride=20, max_frames=200)
        for i in range(92)
    ]
    split = split_trajectories(range(92), Shares(train=0.8, valid=0.1), seed=42)
    splits = [split.train, split.valid, split.test]
    assert [len(segments) for segments in splits] == [73, 9, 10]
    pairs = [len(Samples(data, s, window=Window(), normalizer=PLAIN)) for s in splits]
    assert pairs == [14_527, 1_791, 1_990]


def test_a_strict_split_shares_no_frame_and_keeps_its_distance() -> None:
    data = [numbered("a", 40, 0), numbered("b", 33, 100)]
    shares = Shares(train=0.5, valid=0.2, calibration=0.15)
    split = split_in_time([t.num_frames for t in data], shares, guard=3)
    window = Window(history=2, horizon=1)
    seen = [
        {
            n
            for row in frame_numbers(Samples(data, part, window=window, normalizer=PLAIN))
            for n in row
        }
        for part in (split.train, split.valid, split.calibration, split.test)
    ]
    for i, mine in enumerate(seen):
        for j, theirs in enumerate(seen[i + 1 :], i + 1):
            distance = min(abs(a - b) for a in mine for b in theirs)
            assert distance == 4 if j == i + 1 else distance > 4


def test_a_sample_is_standardised_and_unknown_points_are_zero() -> None:
    valid = torch.rand(6, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.2
    states = torch.where(valid[:, None], 3 + 2 * random_states(6, 2, 5, 7), math.nan)
    data = [make_trajectory(states=states, valid=valid, body=disc(), re=1000.0)]
    normalizer = Normalizer((3.0, 2.0), (2.0, 4.0))
    window = Window(history=2, horizon=2)
    batch = Samples(data, window=window, normalizer=normalizer).batch([1])
    known = (valid & ~disc())[1:5]
    mean, std = torch.tensor([3.0, 2.0]), torch.tensor([2.0, 4.0])
    z = (states[1:5] - mean[:, None, None]) / std[:, None, None]
    z = torch.where(known[:, None], z, 0.0)
    # The oldest frame first, all channels of a frame together.
    assert torch.equal(batch.x, torch.cat((z[0], z[1]))[None])
    assert torch.equal(batch.y, z[None, 2:])
    assert torch.equal(batch.mask, (known[0] & known[1])[None])
    assert torch.equal(batch.target_mask, known[None, 2:])


def test_parameters_are_standardised_by_the_training_split() -> None:
    data = [make_trajectory(n, re=re) for n, re in (("a", 100.0), ("b", 10000.0), ("c", 1000.0))]
    train = [Segment(0), Segment(1)]
    spec = replace(common_spec(data), parameters=fit_parameters(data, train))
    samples = Samples(data, window=Window(), normalizer=PLAIN, spec=spec)
    batch = samples.batch([0, 5, 10])
    torch.testing.assert_close(batch.parameters[:, 0], torch.tensor([-1.0, 1.0, 0.0]))
    # No damping is stated: unknown, which is not the same as average.
    assert bool(batch.parameters[:, 1].isnan().all())
    assert batch.parameters.shape == (3, 16) and not batch.parameters[:, 2:].any()


# Order


def test_the_order_follows_from_seed_epoch_and_step() -> None:
    order = BatchOrder(23, 5, seed=7)
    order.go_to(3)
    whole = list(order)
    assert sorted(sum(whole, [])) == list(range(23)) and len(whole) == len(order) == 5
    resumed = BatchOrder(23, 5, seed=7)
    resumed.go_to(3, step=2)
    assert list(resumed) == whole[2:] and len(resumed) == 3
    orders = {}
    for seed, epoch in ((7, 3), (7, 4), (8, 3), (8, 2)):
        other = BatchOrder(23, 5, seed=seed)
        other.go_to(epoch)
        orders[seed, epoch] = str(list(other))
    assert len(set(orders.values())) == 4


def test_worker_processes_give_the_same_batches_from_a_file(tmp_path: Path) -> None:
    stored = [make_trajectory(str(i), frames=8 + i, seed=i, re=100.0 * (i + 1)) for i in range(4)]
    write(tmp_path / "flow.h5", stored)
    reader = Reader(tmp_path / "flow.h5")
    data = [represent(t, stride=2, size=(4, 9)) for t in reader]
    data[0].read()  # the parent's handle is open when the workers start
    window = Window(history=2)
    samples = Samples(data, window=window, normalizer=fit_normalizer(data))
    alike = [represent(t, stride=2, size=(4, 9)).load() for t in stored]
    in_memory = Samples(alike, window=window, normalizer=fit_normalizer(alike))
    order = BatchOrder(len(samples), 3, seed=1)
    loader = make_loader(samples, order, num_workers=2)
    for epoch in range(2):
        order.go_to(epoch, step=epoch)
        found = list(loader)
        wanted = [in_memory.batch(indices) for indices in order]
        assert len(found) == len(wanted) == len(order)
        for a, b in zip(found, wanted, strict=True):
            assert_same_batch(a, b)
    data[0].read()


# The common spec


def test_the_common_spec_keeps_shared_values() -> None:
    a = make_trajectory("a", body=disc())
    b = make_trajectory("b", body=disc())
    assert common_spec([a, b]) == a.spec
    c = make_trajectory("c", dt=0.1, body=disc().roll(1))
    c = replace(c, spec=replace(c.spec, reference_velocity=None))
    found = common_spec([a, b, c])
    assert found.dt is None and found.reference_velocity is None and found.grid.body is None
    assert found.reference_length == a.spec.reference_length
    assert found.parameter_names == ("Re", "damping")


def test_incompatible_trajectories_are_named() -> None:
    a = make_trajectory("a")
    wide = make_trajectory("b", spec=replace(a.spec, grid=replace(a.spec.grid, dx=0.2)))
    for data, found in (
        ([a, wide], "grid.dx .*'a' and 'b' differ: 0.1 and 0.2; .* options.in_points=true"),
        ([a, make_trajectory("b", channels=("u", "v", "p"))], "channels .*'a' and 'b'"),
        ([], "at least one trajectory"),
    ):
        with pytest.raises(ValueError, match=found):
            common_spec(data)


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, None), (1, 2), (2, None), (3, 2)])
def test_processes_and_micro_batches_split_every_batch(world_size, micro_batch):
    whole = BatchOrder(23, 5, seed=3)
    whole.go_to(4)
    orders = [
        BatchOrder(23, 5, seed=3, rank=rank, world_size=world_size, micro_batch=micro_batch)
        for rank in range(world_size)
    ]
    pieces = []
    for order in orders:
        order.go_to(4)
        pieces.append(list(order))
        assert len(order) == len(pieces[-1])
    for step, batch in enumerate(whole):
        together = []
        for order, rest in zip(orders, pieces, strict=True):
            for start, stop in order.ranges(step):
                piece = rest.pop(0)
                assert len(piece) == stop - start <= (micro_batch or 5)
                together += piece
        assert together == batch
        assert whole.size(step) == len(batch)
    assert not any(pieces)


# Samples held on a device: the batches are those of the plain loader, to the bit


def varied() -> list[Trajectory]:
    """Several lengths, a gap in time, a static and a moving body, missing vectors, unknown Re."""
    valid = torch.rand(8, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.2
    missing = torch.where(valid[:, None], random_states(8, 3, 5, 7, seed=1), math.nan)
    moving = torch.stack([disc().roll(frame, dims=1) for frame in range(5)])
    gap = 0.05 * torch.tensor([0, 1, 2, 9, 10, 11, 12, 13], dtype=torch.float64)
    names = ("u", "v", "p")
    return [
        make_trajectory("short", 1, channels=names, seed=4),
        make_trajectory("still", 11, channels=names, body=disc(), seed=5, re=100.0),
        make_trajectory("moving", 5, channels=names, body=moving, seed=6, re=None),
        make_trajectory("missing", states=missing, channels=names, valid=valid, time=gap, re=9e3),
    ]


def samples_of(
    data: Sequence[Trajectory], window: Window, segments: Sequence[Segment] | None = None
) -> Samples:
    spec = replace(common_spec(data), parameters=fit_parameters(data))
    return Samples(data, segments, window=window, normalizer=fit_normalizer(data), spec=spec)


@pytest.mark.parametrize("window", [Window(history=3), Window(history=2, horizon=2)])
def test_the_batches_are_those_of_the_plain_loader(window: Window) -> None:
    samples = samples_of(varied(), window)
    order = BatchOrder(len(samples), 4, seed=2)
    loader = ResidentLoader(samples, order)
    for epoch, step in ((0, 0), (1, 0), (1, 2), (2, order.steps_per_epoch)):
        order.go_to(epoch, step)
        wanted = list(make_loader(samples, order))
        found = list(loader)
        assert len(loader) == len(found) == len(wanted) == order.steps_per_epoch - step
        for a, b in zip(found, wanted, strict=True):
            assert_same_batch(a, b)
            assert a.x.is_contiguous() and a.y.is_contiguous() and a.mask.is_contiguous()


def test_a_set_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = samples_of(varied(), Window())
    order = BatchOrder(len(samples), 4, seed=0)
    need = ResidentLoader(samples, order).nbytes
    monkeypatch.setattr(resident, "_free_bytes", lambda device: need)
    ResidentLoader(samples, order)
    monkeypatch.setattr(resident, "_free_bytes", lambda device: need - 1)
    with refused("0.00 GiB", "cpu", "fewer"):
        ResidentLoader(samples, order)


@pytest.mark.gpu
def test_the_batches_on_a_gpu_are_those_on_the_cpu() -> None:
    samples = samples_of(varied(), Window(history=2, horizon=2))
    order = BatchOrder(len(samples), 4, seed=2)
    loader = ResidentLoader(samples, order, "cuda")
    for found, wanted in zip(loader, make_loader(samples, order), strict=True):
        assert found.x.is_cuda
        assert_same_batch(found.to("cpu"), wanted)
    # One frame again and again: too much for the device, but nothing in memory.
    frames = torch.cuda.mem_get_info()[1] // (9 * 512 * 512) + 1
    states = random_states(1, 2, 512, 512).expand(frames, -1, -1, -1)
    big = Samples([make_trajectory(states=states)], window=Window(), normalizer=PLAIN)
    with pytest.raises(ValueError, match="GiB free"):
        ResidentLoader(big, BatchOrder(len(big), 4, seed=2), "cuda")
