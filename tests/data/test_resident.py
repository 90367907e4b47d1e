"""Samples held on a device: the batches are those of the plain loader, to the bit."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from pibert.data import resident
from pibert.data.dataset import BatchOrder, Samples, Window, common_spec, make_loader
from pibert.data.normalize import fit_normalizer, fit_parameters
from pibert.data.resident import ResidentLoader
from pibert.data.splits import Segment
from pibert.fields import Normalizer, Trajectory
from tests.data.helpers import assert_same_batch, disc, make_trajectory, random_states

IDENTITY = Normalizer.identity(2)


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
    with pytest.raises(ValueError, match=r"take 0.00 GiB, but cpu has 0.00 GiB free; use fewer"):
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
    big = Samples([make_trajectory(states=states)], window=Window(), normalizer=IDENTITY)
    with pytest.raises(ValueError, match="GiB free"):
        ResidentLoader(big, BatchOrder(len(big), 4, seed=2), "cuda")
