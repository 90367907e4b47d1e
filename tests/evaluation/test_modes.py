"""POD, SPOD and DMD of signals whose modes are known."""

import math

import torch
from torch import Tensor

from pibert.evaluation.modes import default_segment, dmd, pod, segments, spod
from tests.helpers import assert_close, refused

DT, POINTS = 0.05, 24


def wave(frames: int, frequency: float, number: int, growth: float = 0.0) -> Tensor:
    """A wave that travels along a periodic line, (t, points)."""
    time = DT * torch.arange(frames, dtype=torch.float64)[:, None]
    x = 2 * math.pi * number * torch.arange(POINTS, dtype=torch.float64) / POINTS
    return torch.exp(growth * time) * torch.cos(x - 2 * math.pi * frequency * time)


def test_a_travelling_wave_has_two_equal_modes_and_its_whole_energy_in_them() -> None:
    flow = wave(200, frequency=0.4, number=3)  # 4 periods
    found = pod(flow)
    assert len(found.energy) == 2
    assert_close(found.share, torch.tensor([0.5, 0.5]).double(), rtol=1e-10)
    assert_close(found.energy.sum(), flow.square().sum(1).mean(), rtol=1e-12)
    assert_close(found.coefficients @ found.modes, flow, rtol=1e-10)
    assert_close(found.modes @ found.modes.T, torch.eye(2).double(), rtol=1e-10)


def test_dmd_finds_frequencies_and_growth_rates() -> None:
    flow = 3 * wave(150, 1.7, 2, growth=-0.2) + wave(150, 0.6, 5, growth=0.1)
    found = dmd(pod(flow).coefficients, DT, rank=10)
    assert_close(found.frequency, torch.tensor([1.7, 0.6], dtype=torch.float64), rtol=1e-8)
    assert_close(found.growth, torch.tensor([-0.2, 0.1], dtype=torch.float64), rtol=1e-7)
    # The waves are orthogonal: the amplitude is the rms over time of the norm of each.
    rms = (3 * wave(150, 1.7, 2, growth=-0.2)).square().sum(1).mean().sqrt()
    assert_close(found.amplitude[0], rms, rtol=1e-6)


def test_the_amplitude_of_a_mode_is_what_its_pair_adds() -> None:
    """Also where a mode and its conjugate are nearly parallel, so that they nearly cancel."""
    times = DT * torch.arange(80).double()
    slow = torch.exp(-0.5 * times) * torch.cos(0.05 * times)
    parallel = slow[:, None] * torch.tensor([3.0, 4.0, 0.0]).double()
    other = torch.exp(-0.5 * times) * torch.sin(0.05 * times)
    flow = parallel + 0.02 * other[:, None] * torch.tensor([0.0, 0.0, 5.0]).double()
    found = dmd(flow, DT, rank=2)
    assert len(found.amplitude) == 1
    assert_close(found.amplitude[0], flow.square().sum(1).mean().sqrt(), rtol=1e-6)


def test_dmd_of_few_frames_is_no_fourier_transform() -> None:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(12, POINTS, generator=generator).double()
    found = dmd(pod(noise - noise.mean(0)).coefficients, DT, rank=20)
    assert len(found.frequency) <= 6
    assert float(found.growth.abs().max()) > 1e-3 / DT


def test_spod_separates_two_frequencies_that_pod_mixes() -> None:
    generator = torch.Generator().manual_seed(0)
    length, frames = 64, 1024
    low, high = 4 / (length * DT), 12 / (length * DT)  # whole periods in a segment
    noise = 1e-3 * torch.randn(frames, POINTS, generator=generator).double()
    flow = wave(frames, low, 2) + wave(frames, high, 3) + noise
    coefficients = pod(flow)
    assert float(coefficients.share[3]) > 0.2  # four equal modes: POD does not tell them apart
    found = spod(coefficients.coefficients, DT, length)
    assert len(segments(flow, length)) == 31
    peaks = found.peaks(2)
    assert_close(sorted(found.frequency[peaks].tolist()), [low, high], rtol=1e-12)
    for peak, number in ((int(i), 2 if i == min(peaks) else 3) for i in peaks):
        assert float(found.energy[peak, 0] / found.energy[peak].sum()) > 0.99
        mode = found.modes[peak, 0] @ coefficients.modes.to(found.modes)
        spectrum = torch.fft.fft(mode).abs().square()
        share = (spectrum[number] + spectrum[-number]) / spectrum.sum()
        assert float(share) > 0.999


def test_spod_eigenvalues_add_up_to_the_variance() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(4096, 6, generator=generator).double()
    found = spod(noise - noise.mean(0), DT, 64)
    total = float(found.energy.sum() * found.frequency[0])
    # The part of the spectrum within the Hann window of f = 0 is left out: 1 / 64 of the energy.
    assert abs(total / 6 - 1) < 0.05


def test_few_frames_are_refused_with_a_remedy() -> None:
    assert default_segment(1400) == 256 and default_segment(10) == 8
    with refused("--segment", "64 frames", "found 40"):
        spod(torch.randn(40, 3).double(), DT, 32)
    with refused("same field"):
        pod(torch.zeros(5, 4).double())


def test_what_is_slower_than_a_segment_is_no_peak() -> None:
    length, frames = 64, 512
    slow = wave(frames, 0.3 / (length * DT), 2)
    noise = 1e-4 * torch.randn(frames, POINTS, generator=torch.Generator().manual_seed(0)).double()
    found = spod(pod(slow + noise).coefficients, DT, length)
    assert int(found.energy[:, 0].argmax()) == 0
    assert 0 not in found.peaks(5)
