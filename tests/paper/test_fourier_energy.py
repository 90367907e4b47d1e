"""Proposition "energy preservation of the Fourier branch", and its gradients in the appendix.

Right: per-frequency mixing with orthonormal columns, other modes zeroed, is 1-Lipschitz and an
isometry on band-limited fields. To repair in the statement:

- the weights are complex, so the condition is W^H W = I; W^T W = I allows gain (tested);
- it holds for the full plane of frequencies. A real field is stored as a half-plane, in which the
  columns k_x = 0 (and k_x = W/2, W even) hold both k and -k. Unless W(-k) = conj W(k) there, and W
  is real at the mean and the Nyquist bins, the inverse transform returns the mean of W(k) and
  conj W(-k), which shrinks energy. The branch ties these weights and drops the row -M there, whose
  partner +M is not kept: "band-limited" means limited to what then remains.

Appendix, with g^ = FFT(dL/dy) and derivatives d/dRe + i d/dIm: g^ x^^H and W^H g^ lack the factor
1/(HW) of the inverse transform, and a bin of the half-plane whose mirror image is not stored (or is
tied to it) counts twice:

    dL/dW(k) = m(k)/(HW) sum_b g^ x^^H,   m = 2, or 1 (real part) at the mean and Nyquist bins.

The spatial gradient IFFT(W^H g^) is right as printed: there the two missing factors cancel.
"""

import pytest
import torch
from torch import Tensor

from pibert.models.fourier import FourierBranch
from tests.paper.helpers import linear_part, noise, randomise, relative_error, train_a_little

# (ny, nx, modes): even, odd and non-square grids, modes up to Nyquist in y, in x and in both.
GRIDS = [
    (12, 10, 4),
    (12, 10, 6),
    (11, 9, 5),
    (9, 12, 3),
    (16, 8, 8),
    (8, 5, 4),
    (7, 16, 1),
]


def make_branch(
    grid: tuple[int, int, int],
    *,
    unitary: bool = True,
    channels: int = 2,
    width: int = 3,
    seed: int = 0,
) -> FourierBranch:
    ny, nx, modes = grid
    branch = FourierBranch(channels, width, modes, (ny, nx), unitary=unitary).double()
    randomise(branch, seed)
    return branch


def is_kept(ky: int, kx: int, ny: int, nx: int, modes: int) -> bool:
    """Whether the bin (ky, kx), kx in the half-plane 0 ... nx//2, is kept on this grid."""
    if kx > modes // 2 or not -min(modes, ny // 2) <= ky < min(modes, (ny + 1) // 2):
        return False
    self_mirrored_column = 2 * kx % nx == 0
    paired = -ky < min(modes, (ny + 1) // 2) or 2 * ky == -ny
    return paired or not self_mirrored_column


def band_limited(x: Tensor, modes: int) -> Tensor:
    """The part of a field in the kept modes."""
    ny, nx = x.shape[-2:]
    kept = torch.zeros(ny, nx // 2 + 1, dtype=x.dtype)
    for ky in range(-(ny // 2), (ny + 1) // 2):
        for kx in range(nx // 2 + 1):
            kept[ky, kx] = is_kept(ky, kx, ny, nx, modes)
    return torch.fft.irfft2(torch.fft.rfft2(x) * kept, s=(ny, nx))


def full_plane_weights(branch: FourierBranch, ny: int, nx: int) -> Tensor:
    """W(k) as D x C matrices on the whole plane (ny, nx, d, c), from the stored weights alone."""
    modes = branch.modes
    stored = torch.cat((branch.positive, branch.negative)).detach()  # rows 0..M-1, -M..-1
    stored = torch.view_as_complex(stored.contiguous()).mT  # (2M, k, d, c)
    full = torch.zeros(ny, nx, *stored.shape[2:], dtype=stored.dtype)
    for ky in range(-(ny // 2), (ny + 1) // 2):
        for kx in range(nx // 2 + 1):
            if not is_kept(ky, kx, ny, nx, modes):
                continue
            matrix = stored[ky, kx]
            if 2 * kx % nx == 0:
                if 2 * ky % ny == 0:
                    matrix = matrix.real.to(matrix.dtype)
                elif ky < 0:
                    matrix = stored[-ky, kx].conj()
            if branch.unitary:
                # Gram-Schmidt is the QR factorisation with a positive diagonal.
                q, r = torch.linalg.qr(matrix)
                phase = r.diagonal() / r.diagonal().abs()
                matrix = q * phase
            full[ky, kx] = matrix
            full[-ky, -kx] = matrix.conj()
    return full


def dft_matrix(n: int) -> Tensor:
    k = torch.arange(n, dtype=torch.float64)
    return torch.polar(torch.ones(n, n, dtype=torch.float64), -2 * torch.pi * k[:, None] * k / n)


def apply_on_the_full_plane(x: Tensor, weights: Tensor) -> Tensor:
    """Complex transform by sums, W(k) x^(k) at every frequency, and back."""
    ny, nx = x.shape[-2:]
    fy, fx = dft_matrix(ny), dft_matrix(nx)
    spectrum = fy @ x.to(fy.dtype) @ fx.mT
    mixed = torch.einsum("bcyx,yxdc->bdyx", spectrum, weights)
    return fy.conj() @ mixed @ fx.conj().mT / (ny * nx)


# The proposition


@pytest.mark.parametrize("grid", GRIDS)
def test_the_unitary_branch_never_stretches_a_field(grid: tuple[int, int, int]) -> None:
    ny, nx, modes = grid
    branch = make_branch(grid)
    rows, columns = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
    impulse = torch.zeros(ny, nx, dtype=torch.float64)
    impulse[1, 2] = 1.0
    stripes = (-1.0) ** rows.double()
    checkerboard = (-1.0) ** (rows + columns).double()
    unpaired = torch.cos(2 * torch.pi * modes * rows / ny).double()
    worst = torch.stack((impulse, stripes, checkerboard, unpaired))
    fields = torch.cat((noise(20, 2, ny, nx), worst[:, None] * noise(4, 2, 1, 1, seed=1)))
    with torch.no_grad():
        out = branch(fields) - branch(fields.roll(1, 0))
    stretched = out.flatten(1).norm(dim=1) / (fields - fields.roll(1, 0)).flatten(1).norm(dim=1)
    assert stretched.max() <= 1 + 1e-12


@pytest.mark.parametrize("grid", [(6, 6, 2), (6, 5, 3), (5, 6, 2), (4, 4, 2), (8, 4, 4)])
def test_every_singular_value_is_one_or_zero(grid: tuple[int, int, int]) -> None:
    """The exact operator on a tiny grid: an isometry on the kept band, nothing elsewhere."""
    ny, nx, modes = grid
    values = torch.linalg.svdvals(linear_part(make_branch(grid), (2, ny, nx)))
    rank = torch.linalg.matrix_rank(
        linear_part(lambda x: band_limited(x, modes), (1, ny, nx)), rtol=1e-8
    )
    ones = int(2 * rank)
    assert (values[:ones] - 1).abs().max() < 1e-12
    assert len(values) == ones or values[ones:].max() < 1e-12


@pytest.mark.parametrize("grid", GRIDS)
def test_the_unitary_branch_keeps_the_energy_of_band_limited_fields_while_it_trains(
    grid: tuple[int, int, int],
) -> None:
    ny, nx, modes = grid
    branch = make_branch(grid)
    before = branch.weights((ny, nx)).detach()
    x = band_limited(noise(3, 2, ny, nx), modes)
    for trained in (False, True):
        if trained:
            train_a_little(branch, noise(1, 2, ny, nx, seed=1))
        with torch.no_grad():
            energy = branch(x).square().sum((1, 2, 3))
        assert relative_error(energy, x.square().sum((1, 2, 3))) < 1e-10
    assert (branch.weights((ny, nx)) - before).abs().max() > 1e-2


def test_columns_stay_orthonormal_in_the_complex_sense() -> None:
    ny, nx, modes = grid = (12, 10, 6)
    branch = make_branch(grid, channels=3, width=5)
    train_a_little(branch, noise(2, 3, ny, nx))
    weight = torch.view_as_complex(branch.weights((ny, nx)).detach().contiguous())  # (r, k, c, d)
    identity = torch.eye(3, dtype=weight.dtype)
    assert (weight.conj() @ weight.mT - identity).abs().max() < 1e-12
    # What the paper prints, without the conjugation, is not what holds.
    assert (weight @ weight.mT - identity).abs().max() > 0.1


def test_orthonormality_without_the_conjugate_does_not_bound_the_gain() -> None:
    """W^T W = I as printed: (sqrt(2), i) has w^T w = 1 and length sqrt(3)."""
    w = torch.tensor([2**0.5, 1j], dtype=torch.complex128)
    assert abs(w @ w - 1) < 1e-12
    x = torch.cos(2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8)
    y = torch.fft.irfft(w[:, None] * torch.fft.rfft(x), n=8)
    assert abs(y.norm() / x.norm() - 3**0.5) < 1e-12


def test_plain_weights_are_not_an_isometry() -> None:
    ny, nx, modes = grid = (12, 10, 4)
    branch = make_branch(grid, unitary=False)
    x = band_limited(noise(3, 2, ny, nx), modes)
    ratio = branch(x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert (ratio - 1).abs().min() > 0.1


# The operator


@pytest.mark.parametrize("unitary", [False, True])
@pytest.mark.parametrize("grid", [(6, 5, 2), (6, 6, 3), (5, 4, 2), (8, 4, 4), (7, 6, 3)])
def test_the_branch_multiplies_every_frequency_of_the_full_plane(
    grid: tuple[int, int, int], unitary: bool
) -> None:
    ny, nx, _ = grid
    branch = make_branch(grid, unitary=unitary)
    x = noise(2, 2, ny, nx)
    expected = apply_on_the_full_plane(x, full_plane_weights(branch, ny, nx))
    assert expected.imag.abs().max() < 1e-13  # the extension is Hermitian
    assert relative_error(branch(x), expected.real) < 1e-12


@pytest.mark.parametrize("coarse", [(8, 6), (9, 7), (4, 16), (5, 3)])
def test_on_other_grids_the_same_weights_act_on_the_modes_that_exist(
    coarse: tuple[int, int],
) -> None:
    branch = make_branch((16, 16, 8), unitary=False)
    x = noise(2, 2, *coarse)
    expected = apply_on_the_full_plane(x, full_plane_weights(branch, *coarse))
    assert relative_error(branch(x), expected.real) < 1e-12


@pytest.mark.parametrize("unitary", [False, True])
@pytest.mark.parametrize(("ny", "nx"), [(8, 6), (9, 7)])
def test_a_band_limited_refinement_gives_the_same_output_at_shared_points(
    ny: int, nx: int, unitary: bool
) -> None:
    """Modes that the coarse grid does not have are dropped; the others mean the same."""
    branch = make_branch((2 * ny, 2 * nx, 8), unitary=unitary)
    spectrum = torch.fft.fftshift(torch.fft.fft2(noise(2, 2, ny, nx)), dim=(-2, -1))
    if ny % 2 == 0:
        spectrum[..., 0, :] = 0  # below the coarse Nyquist wavenumber
    if nx % 2 == 0:
        spectrum[..., :, 0] = 0
    padding = (nx - nx // 2, nx // 2, ny - ny // 2, ny // 2)
    refined = torch.nn.functional.pad(spectrum, padding)
    coarse = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(-2, -1))).real
    fine = 4 * torch.fft.ifft2(torch.fft.ifftshift(refined, dim=(-2, -1))).real
    assert relative_error(fine[..., ::2, ::2], coarse) < 1e-12
    assert relative_error(branch(fine)[..., ::2, ::2], branch(coarse)) < 1e-12


def test_without_ties_an_orthonormal_mixing_loses_energy() -> None:
    """On k_x = 0 the inverse transform keeps the mean of W(k) and conj W(-k)."""
    ny, nx, k = 8, 6, 2
    rows = torch.arange(ny, dtype=torch.float64)[:, None].expand(ny, nx)
    x = torch.cos(2 * torch.pi * k * rows / ny + 0.3)
    for turn in (0.0, 0.7, 1.9, torch.pi):
        weight = torch.ones(ny, nx // 2 + 1, dtype=torch.complex128)
        weight[-k, 0] = torch.polar(torch.tensor(1.0), torch.tensor(turn)).to(weight.dtype)
        assert (weight.abs() - 1).abs().max() < 1e-6  # unitary at every stored frequency
        y = torch.fft.irfft2(weight * torch.fft.rfft2(x), s=(ny, nx))
        assert abs(y.norm() / x.norm() - abs(torch.cos(torch.tensor(turn / 2)))) < 1e-6


def test_without_ties_the_effective_weight_is_the_mean_over_the_pair() -> None:
    ny, nx = 7, 6
    untied = torch.linalg.qr(
        torch.complex(noise(ny, nx // 2 + 1, 3, 2), noise(ny, nx // 2 + 1, 3, 2, seed=1))
    )[0]
    x = noise(1, 2, ny, nx, seed=2).mean(-1, keepdim=True).expand(1, 2, ny, nx)  # only k_x = 0
    mixed = torch.einsum("bcyx,yxdc->bdyx", torch.fft.rfft2(x), untied)
    y = torch.fft.irfft2(mixed, s=(ny, nx))
    mirror = -torch.arange(ny) % ny
    effective = (untied[:, 0] + untied[mirror, 0].conj()) / 2
    expected = torch.einsum("bcy,ydc->bdy", torch.fft.fft2(x)[..., 0], effective)
    assert relative_error(torch.fft.fft2(y)[..., 0], expected) < 1e-12
    assert y.norm() < 0.95 * x.norm()


# The gradients of the appendix


@pytest.mark.parametrize("grid", [(8, 6, 3), (8, 6, 4), (7, 5, 3), (8, 4, 4)])
def test_weight_gradients_are_those_of_the_appendix_over_hw_and_doubled_where_mirrored(
    grid: tuple[int, int, int],
) -> None:
    ny, nx, modes = grid
    branch = make_branch(grid, unitary=False)
    x, g = noise(2, 2, ny, nx), noise(2, 3, ny, nx, seed=1)
    (branch(x) * g).sum().backward()
    assert branch.positive.grad is not None and branch.negative.grad is not None
    found = torch.view_as_complex(torch.cat((branch.positive.grad, branch.negative.grad)))
    printed = torch.einsum("bdyx,bcyx->yxcd", torch.fft.fft2(g), torch.fft.fft2(x).conj())
    expected = torch.zeros_like(found)
    for ky in range(-modes, modes):
        for kx in range(modes // 2 + 1):
            self_mirrored_column = 2 * kx % nx == 0
            if not is_kept(ky, kx, ny, nx, modes):
                continue
            if self_mirrored_column and 2 * ky % ny == 0:
                expected[ky, kx] = printed[ky, kx].real / (ny * nx)
            elif not (self_mirrored_column and ky < 0):  # there the stored weight does nothing
                expected[ky, kx] = 2 * printed[ky, kx] / (ny * nx)
    assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("unitary", [False, True])
def test_the_spatial_gradient_is_that_of_the_appendix(unitary: bool) -> None:
    ny, nx, _ = grid = (8, 7, 4)
    branch = make_branch(grid, unitary=unitary)
    x, g = noise(2, 2, ny, nx).requires_grad_(), noise(2, 3, ny, nx, seed=1)
    (branch(x) * g).sum().backward()
    weights = full_plane_weights(branch, ny, nx)
    pulled_back = torch.einsum("yxdc,bdyx->bcyx", weights.conj(), torch.fft.fft2(g))
    assert x.grad is not None
    assert relative_error(x.grad, torch.fft.ifft2(pulled_back).real) < 1e-12


def test_the_spectral_gradient_lacks_one_over_hw_on_the_full_plane() -> None:
    ny, nx, _ = grid = (6, 5, 3)
    weights = full_plane_weights(make_branch(grid), ny, nx)
    spectrum = torch.fft.fft2(noise(1, 2, ny, nx)).requires_grad_()
    g = noise(1, 3, ny, nx, seed=1)
    y = torch.fft.ifft2(torch.einsum("yxdc,bcyx->bdyx", weights, spectrum))
    (y.real * g).sum().backward()
    printed = torch.einsum("yxdc,bdyx->bcyx", weights.conj(), torch.fft.fft2(g))
    assert spectrum.grad is not None
    assert relative_error(spectrum.grad, printed / (ny * nx)) < 1e-12
