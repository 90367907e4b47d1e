"""Proposition "Parseval tight frame", lemma "partition of unity", proposition "energy accounting".

All three are right. Two notes:

- the lemma asks for an even C^1 angle on [-pi, pi]. On the circle that also needs
  theta'(pi) = 0, else the windows have a kink at Nyquist; the partition of unity itself needs no
  smoothness at all. Our trained angle is smooth on the circle for any coefficients.
- the proof of the energy accounting writes |sum (S-1)|x^|^2| = sum |S-1| |x^|^2; that step is an
  inequality (tested). The bound itself is right and attained.

Appendix gradients: dL/dx = sum_s K_s^v * h_s and dL/dK_s = h_s * x^v hold as printed; in the
Fourier domain conj(x^) h^ lacks the 1/(HW) of the inverse transform. The window derivatives hold.
"""

import pytest
import torch
from torch import Tensor, nn

from pibert.models.layers import count
from pibert.models.wavelet import NUM_HARMONICS, WaveletTransform, turn
from tests.paper.helpers import noise, randomise, relative_error, train_a_little

KINDS = ("fixed", "trained", "renormalised")
SHAPES = [(8, 12), (9, 7), (10, 5), (6, 6)]


class Renormalised(WaveletTransform):
    """The appendix's other way to train windows: free even responses over (g0^2 + g1^2)^(1/2)."""

    def __init__(self, levels: int) -> None:
        super().__init__(levels)
        self.responses = nn.Parameter(torch.zeros(levels, 2, NUM_HARMONICS))

    def windows(self, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        waves = 2.0 ** count(0, self.levels, device=device)[:, None] * count(0, n, device=device)
        orders = count(0, NUM_HARMONICS, device=device)
        cosines = turn(waves[..., None] * orders, n).to(dtype).cos()
        raw = torch.einsum("jnk,jgk->jgn", cosines, self.responses.to(dtype))
        return raw / raw.square().sum(1, keepdim=True).sqrt()


def harmonics(frame: WaveletTransform) -> nn.Parameter:
    assert frame.harmonics is not None
    return frame.harmonics


def make_frame(kind: str, levels: int = 1, seed: int = 0) -> WaveletTransform:
    trained = kind == "trained"
    frame = WaveletTransform(levels, "trained" if trained else "fixed")
    frame = (Renormalised(levels) if kind == "renormalised" else frame).double()
    randomise(frame, seed)
    return frame


def synthesise(frame: WaveletTransform, bands: Tensor) -> Tensor:
    """The adjoint of the analysis, from autograd."""
    b, channels, ny, nx = bands.shape
    x = torch.zeros(b, channels // frame.num_bands, ny, nx, dtype=bands.dtype, requires_grad=True)
    return torch.autograd.grad(frame(x), x, bands)[0]


def windows(frame: WaveletTransform, n: int) -> Tensor:
    return frame.windows(n, torch.float64, torch.device("cpu")).detach()


def filters(low_y: Tensor, high_y: Tensor, low_x: Tensor, high_x: Tensor) -> Tensor:
    """Fourier responses LH, HL, HH, LL (first letter: x) on the grid, (4, y, x)."""
    pairs = ((high_y, low_x), (low_y, high_x), (high_y, high_x), (low_y, low_x))
    return torch.stack([y[:, None] * x for y, x in pairs])


def angle_and_slopes(frame: WaveletTransform, n: int) -> tuple[Tensor, Tensor]:
    """A level's theta at n points of the circle, and the one-sided slopes there."""
    low, high = windows(frame, n)[0]
    theta = torch.atan2(high, low)
    return theta, (theta.roll(-1) - theta) * n / (2 * torch.pi)


# The frame


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_sub_bands_conserve_energy_and_synthesis_restores_the_field(
    kind: str, levels: int, shape: tuple[int, int]
) -> None:
    frame = make_frame(kind, levels)
    x = noise(2, 2, *shape)
    for trained in (False, True):
        if trained and kind != "fixed":
            train_a_little(frame, noise(1, 2, *shape, seed=1))
        with torch.no_grad():
            bands = frame(x)
        back = synthesise(frame, bands)
        assert bands.shape[1] == 2 * (3 * levels + 1)
        assert relative_error(bands.square().sum((1, 2, 3)), x.square().sum((1, 2, 3))) < 1e-10
        assert relative_error(back, x) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_analysis_and_synthesis_never_stretch(kind: str) -> None:
    frame = make_frame(kind, levels=2)
    bands = noise(20, 7, 6, 5)
    ratio = synthesise(frame, bands).flatten(1).norm(dim=1) / bands.flatten(1).norm(dim=1)
    assert ratio.max() <= 1 + 1e-12
    assert ratio.max() < 0.9  # arbitrary sub-bands are not those of a field


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_the_windows_are_an_even_partition_of_unity(kind: str, n: int) -> None:
    values = windows(make_frame(kind, levels=3), n)
    assert (values.square().sum(1) - 1).abs().max() < 1e-12
    mirrored = values[..., -torch.arange(n) % n]
    assert (values - mirrored).abs().max() < 1e-12
    low, high = values[0]
    responses = filters(low, high, low, high)
    assert (responses.square().sum(0) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_filtering_commutes_with_translation(kind: str) -> None:
    frame = make_frame(kind, levels=2)
    x = noise(1, 2, 9, 8)
    shifted = frame(x.roll((2, 3), (-2, -1)))
    assert relative_error(shifted, frame(x).roll((2, 3), (-2, -1))) < 1e-12
    assert relative_error(shifted, frame(x)) > 0.1


def test_the_angle_follows_its_formula_and_stays_in_the_quarter_turn() -> None:
    frame = make_frame("trained", seed=3)
    n = 401
    omega = 2 * torch.pi * (torch.arange(n) - n // 2).double() / n  # in [-pi, pi]
    half = omega / 2
    for order, coefficient in enumerate(harmonics(frame)[0].detach(), start=1):
        half = half + coefficient * torch.sin(order * omega)
    expected = torch.pi / 2 * torch.sin(half) ** 2
    theta = angle_and_slopes(frame, n)[0].roll(n // 2)
    assert (theta - expected).abs().max() < 1e-12
    assert theta.min() >= 0 and theta.max() <= torch.pi / 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_trained_angle_has_no_kink_on_the_circle(seed: int) -> None:
    """One-sided slopes differ by less and less, across omega = 0 and omega = pi too."""
    frame = make_frame("trained", seed=seed)
    jumps = {}
    for n in (8192, 16384):
        slopes = angle_and_slopes(frame, n)[1]
        jump = (slopes - slopes.roll(1)).abs()
        jumps[n] = torch.stack((jump.max(), jump[0], jump[n // 2]))
    assert (jumps[16384] < 0.51 * jumps[8192]).all()
    # A kink would keep its jump: the triangle theta = |omega| / 2 is even and has two.
    corner = torch.pi / 2 * (1 - (2 * torch.arange(8192).double() / 8192 - 1).abs())
    slopes = (corner.roll(-1) - corner) * 8192 / (2 * torch.pi)
    assert (slopes - slopes.roll(1)).abs()[4096] > 0.9


def test_sub_bands_come_finest_first_and_are_named_by_x_then_y() -> None:
    rows, columns = torch.meshgrid(
        torch.arange(8, dtype=torch.float64), torch.arange(12, dtype=torch.float64), indexing="ij"
    )
    across, along = (-1) ** columns, (-1) ** rows
    waves = {"LH": along, "HL": across, "HH": across * along, "LL": torch.ones(8, 12).double()}
    for kind in ("fixed", "trained"):
        frame = make_frame(kind)
        for index, wave in enumerate(waves.values()):
            x = torch.stack((wave, -2 * wave))[None]
            with torch.no_grad():
                bands = frame(x).view(4, 2, 8, 12)
            assert (bands[index] - x[0]).abs().max() < 1e-12  # each band holds the C channels
            assert bands[[i for i in range(4) if i != index]].abs().max() < 1e-12


def test_deeper_levels_split_the_last_low_pass_with_the_dilated_angle() -> None:
    ny, nx = shape = (16, 11)
    frame = make_frame("trained", levels=3, seed=4)
    with torch.no_grad():
        harmonics(frame).copy_(harmonics(frame)[:1].expand(3, NUM_HARMONICS))  # one angle field
    x = noise(1, 1, *shape)
    g_y, g_x = windows(frame, ny)[0], windows(frame, nx)[0]
    responses, low_pass = [], torch.ones(shape, dtype=torch.float64)
    for level in range(3):
        dilated_y, dilated_x = (2**level * torch.arange(n) % n for n in shape)
        *details, smooth = filters(*g_y[:, dilated_y], *g_x[:, dilated_x])
        responses += [low_pass * detail for detail in details]
        low_pass = low_pass * smooth
    expected = torch.fft.ifft2(torch.stack([*responses, low_pass]) * torch.fft.fft2(x)).real
    assert relative_error(frame(x), expected) < 1e-12


# Energy accounting of any filter bank


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Circular convolution by its sum."""
    ny, nx = x.shape
    total = torch.zeros_like(x)
    for row in range(ny):
        for column in range(nx):
            total += kernel[row, column] * x.roll((row, column), (0, 1))
    return total


def band_energy(x: Tensor, kernels: Tensor) -> Tensor:
    return torch.stack([convolve(x, kernel).square().sum() for kernel in kernels]).sum()


@pytest.mark.parametrize("shape", [(6, 5), (4, 7)])
def test_the_energy_of_any_filter_bank_is_weighted_by_its_response(shape: tuple[int, int]) -> None:
    kernels = 0.3 * noise(3, *shape)
    response = torch.fft.fft2(kernels).abs().square().sum(0)
    excess = (response - 1).abs().max()
    assert excess > 0.1  # not tight
    for seed in range(10):
        x = noise(*shape, seed=seed)
        energy = band_energy(x, kernels)
        weighted = (response * torch.fft.fft2(x).abs().square()).sum() / x.numel()
        assert abs(energy - weighted) < 1e-10 * energy
        assert abs(energy - x.square().sum()) < excess * x.square().sum()


@pytest.mark.parametrize("shape", [(6, 5), (4, 7)])
def test_a_single_frequency_attains_the_bound(shape: tuple[int, int]) -> None:
    ny, nx = shape
    kernels = 0.3 * noise(3, *shape)
    excess = (torch.fft.fft2(kernels).abs().square().sum(0) - 1).abs()
    ky, kx = divmod(int(excess.argmax()), nx)
    rows, columns = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
    x = torch.cos(2 * torch.pi * (ky * rows / ny + kx * columns / nx).double())
    found = (band_energy(x, kernels) - x.square().sum()).abs() / x.square().sum()
    assert abs(found - excess.max()) < 1e-10


def test_the_proof_states_an_equality_that_is_an_inequality() -> None:
    """A gain at one frequency and a loss at another cancel in the total, not in the sum."""
    rows = 2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8
    x = (torch.cos(rows) + torch.cos(2 * rows))[:, None].expand(8, 4)
    response = torch.ones(8, 4, dtype=torch.float64)
    response[[1, -1], 0], response[[2, -2], 0] = 1.5, 0.5
    kernel = torch.fft.ifft2(response.sqrt()).real
    power = torch.fft.fft2(x).abs().square() / x.numel()
    left = (band_energy(x, kernel[None]) - x.square().sum()).abs()
    assert left < 1e-12
    assert abs(((response - 1).abs() * power).sum() - 0.5 * x.square().sum()) < 1e-10


# The gradients of the appendix


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(8, 6), (7, 9)])
def test_the_field_gradient_is_synthesis_of_the_band_gradients(
    kind: str, shape: tuple[int, int]
) -> None:
    frame = make_frame(kind)
    x, h = noise(1, 1, *shape).requires_grad_(), noise(1, 4, *shape, seed=1)
    (frame(x) * h).sum().backward()
    responses = filters(*windows(frame, shape[0])[0], *windows(frame, shape[1])[0])
    spectral = (responses * torch.fft.fft2(h[0])).sum(0)  # the responses are real
    assert x.grad is not None
    assert relative_error(x.grad[0, 0], torch.fft.ifft2(spectral).real) < 1e-12


def test_filter_gradients_hold_in_space_and_lack_one_over_hw_in_frequency() -> None:
    shape = (5, 4)
    x, h = noise(*shape), noise(*shape, seed=1)
    kernel = noise(*shape, seed=2).requires_grad_()
    (convolve(x, kernel) * h).sum().backward()
    reversed_x = x.flip((0, 1)).roll((1, 1), (0, 1))
    assert kernel.grad is not None
    assert relative_error(kernel.grad, convolve(h, reversed_x)) < 1e-12

    response = torch.fft.fft2(kernel.detach()).requires_grad_()
    (torch.fft.ifft2(response * torch.fft.fft2(x)).real * h).sum().backward()
    printed = torch.fft.fft2(x).conj() * torch.fft.fft2(h)
    assert response.grad is not None
    assert relative_error(response.grad, printed / x.numel()) < 1e-12


def test_angle_gradients_follow_from_the_window_derivatives() -> None:
    """The appendix's chain: filters by angle, angle by its harmonics, on both axes."""
    ny, nx = shape = (8, 7)
    frame = make_frame("trained", seed=5)
    x, h = noise(1, 1, *shape), noise(1, 4, *shape, seed=1)
    (frame(x) * h).sum().backward()

    def angle(n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Cosine and sine of theta, and its derivative by every harmonic, (n), (n), (k, n)."""
        omega = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n
        sines = torch.stack([torch.sin(k * omega) for k in range(1, NUM_HARMONICS + 1)])
        half = omega / 2 + harmonics(frame)[0].detach() @ sines
        theta = torch.pi / 2 * torch.sin(half) ** 2
        return theta.cos(), theta.sin(), torch.pi / 2 * torch.sin(2 * half) * sines

    low_y, high_y, theta_y = angle(ny)
    low_x, high_x, theta_x = angle(nx)
    by_filter = (torch.fft.fft2(x[0]).conj() * torch.fft.fft2(h[0])).real / (ny * nx)  # (4, y, x)
    # d g0 = -g1 d theta and d g1 = g0 d theta, on one axis at a time.
    by_theta_x = (by_filter * filters(low_y, high_y, -high_x, low_x)).sum((0, 1))
    by_theta_y = (by_filter * filters(-high_y, low_y, low_x, high_x)).sum((0, 2))
    expected = theta_x @ by_theta_x + theta_y @ by_theta_y
    grad = harmonics(frame).grad
    assert grad is not None
    assert relative_error(grad[0], expected) < 1e-10


def test_the_low_pass_window_falls_with_the_angle() -> None:
    """dK_LL / dtheta_x = -sin(theta_x) g0(omega_y), against central differences."""
    theta_x, theta_y = noise(5).abs(), noise(4, seed=1).abs()
    step = 1e-5

    def low_pass(angle_x: Tensor) -> Tensor:
        return filters(theta_y.cos(), theta_y.sin(), angle_x.cos(), angle_x.sin())[3]

    slope = (low_pass(theta_x + step) - low_pass(theta_x - step)) / (2 * step)
    assert (slope + theta_x.sin() * theta_y.cos()[:, None]).abs().max() < 1e-9
