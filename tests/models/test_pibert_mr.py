"""Multiresolution PIBERT: transform, levels, symmetries, other grids, equation terms."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid, Normalizer
from pibert.models import build_model, count_parameters
from pibert.models.fourier import FourierMultiplier
from pibert.models.pibert_mr import PIBERTMR, EquationTerms, analyse, synthesise
from tests.helpers import assert_close, randomise, refused, tiny_model, tiny_spec


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def make(shape: tuple[int, int] = (12, 20), *, periodic: bool = False, **options: Any) -> PIBERTMR:
    kind = Grid.periodic if periodic else Grid
    spec = tiny_spec(shape, grid=kind(shape, dx=0.3, dy=0.2))
    return randomise(tiny_model("pibert-mr", spec, **options)).eval().double()


def test_the_haar_transform_is_orthonormal_and_inverts() -> None:
    x = draw(2, 3, 6, 10)
    bands = analyse(x)
    assert bands.shape == (2, 12, 3, 5)
    assert_close(bands.square().sum(), x.square().sum(), rtol=1e-12)
    assert_close(synthesise(bands), x, rtol=1e-12)
    # Of a basis vector each: rows and columns of the matrix have length one.
    points = torch.eye(24, dtype=torch.float64).view(24, 1, 4, 6)
    matrix = analyse(points).flatten(1)
    assert_close(matrix @ matrix.T, torch.eye(24).double(), rtol=1e-12)


def on_points(model: Any, x: Tensor, parameters: Tensor) -> Tensor:
    """The model in its textbook form: every operator maps a field of points to its change."""
    vector = model.parameter_vector(x, parameters)
    field = model.lift(model._inputs(x, None, None, (x.shape[-2], x.shape[-1])))
    field = field + model.parameter_features(vector)[:, :, None, None]
    levels, width = model.levels((x.shape[-2], x.shape[-1])), model.config.width
    bias = model._logit_bias(x, parameters, None, 2**levels)
    rows, columns = model.token_lattice((x.shape[-2], x.shape[-1]))
    tokens = x.new_zeros(len(x), rows * columns, model.config.token_width)
    tokens = torch.cat((tokens, model.parameter_embedding(vector)[:, None]), dim=1)
    for cycle in model.cycles:
        changes, s = [], field
        for level in range(levels):
            changes.append(synthesise(cycle.local[level](analyse(s))))
            s = analyse(s + changes[-1])[:, :width]
        change, tokens = cycle.coarsest(s, tokens, bias)
        for local in reversed(changes):
            zeros = torch.zeros_like(change).repeat(1, 3, 1, 1)
            change = local + synthesise(torch.cat((change, zeros), dim=1))
        field = field + change
    return x + model.head(field)


@pytest.mark.parametrize("periodic", [True, False])
def test_work_on_bands_and_work_on_points_are_the_same_function(periodic: bool) -> None:
    model = make((16, 24), periodic=periodic)
    x, parameters = draw(2, 2, 16, 24), draw(2, 1)
    assert_close(model(x, parameters), on_points(model, x, parameters), rtol=1e-10)


def test_the_fourier_multiplier_is_a_product_in_fourier_space() -> None:
    ny, nx, modes = 10, 12, 2
    multiplier = randomise(FourierMultiplier(3, modes)).double()
    x = draw(2, 3, ny, nx)
    found = multiplier(x.flatten(2).mT, (ny, nx)).mT.unflatten(-1, (ny, nx))
    spectrum, out = torch.fft.fft2(x), torch.zeros(2, 3, ny, nx, dtype=torch.complex128)
    weights = iter(torch.view_as_complex(multiplier.weight.detach()))
    for kx in range(modes + 1):
        for ky in range(-modes if kx else 0, modes + 1):
            weight = next(weights)
            weight = weight if kx or ky else weight.real.to(weight.dtype)  # the mean stays real
            out[:, :, ky, kx] = spectrum[:, :, ky, kx] @ weight
            out[:, :, -ky, -kx] = spectrum[:, :, -ky, -kx] @ weight.conj()
    assert_close(found, torch.fft.ifft2(out).real, rtol=1e-12)


@pytest.mark.parametrize("levels", [1, 2])
def test_shifts_by_whole_tokens_commute_on_a_periodic_grid(levels: int) -> None:
    model = make((16, 24), periodic=True, coordinates=False, levels=levels, attention_bias=0.5)
    x, parameters = draw(2, 2, 16, 24), draw(2, 1)
    patch = 2**levels
    for shift in ((patch, 0), (0, patch), (3 * patch, -2 * patch)):
        moved = model(x.roll(shift, (-2, -1)), parameters)
        assert_close(moved, model(x, parameters).roll(shift, (-2, -1)), rtol=1e-10)
    half = model(x.roll((1, 0), (-2, -1)), parameters)
    assert not torch.allclose(half, model(x, parameters).roll((1, 0), (-2, -1)), rtol=1e-3)


@pytest.mark.parametrize("shape", [(24, 40), (13, 21), (9, 11)])
def test_one_set_of_weights_runs_on_other_grids(shape: tuple[int, int]) -> None:
    model = make((12, 20))
    x, mask = draw(2, 2, *shape), torch.ones(2, *shape, dtype=torch.bool)
    mask[0, 2:5, 3:6] = False
    answer = model(x, draw(2, 1), mask)
    assert answer.shape == x.shape and answer.isfinite().all()
    assert model.reconstruct(x, None, mask).shape == x.shape
    other = tiny_model("pibert-mr", tiny_spec(shape)).double()
    weights = {k: v for k, v in model.state_dict().items() if not k.startswith("physics_bias")}
    missing, unexpected = other.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.startswith("physics_bias") for name in missing)


@pytest.mark.parametrize(
    ("shape", "levels"),
    [((64, 64), 2), ((128, 128), 2), ((60, 114), 2), ((256, 256), 3), ((1024, 1024), 5)],
)
def test_larger_grids_have_more_levels_not_tokens(shape: tuple[int, int], levels: int) -> None:
    model = build_model("pibert-mr", preset="small")
    assert model.levels(shape) == levels
    rows, columns = model.token_lattice(shape)
    assert rows * columns <= 1024 and rows * 2**levels >= shape[0]


def test_deeper_levels_share_weights() -> None:
    few, many = (make((32, 32), levels=n, own_levels=1) for n in (1, 3))
    assert count_parameters(few) == count_parameters(many)
    assert not torch.allclose(few(x := draw(1, 2, 32, 32)), many(x))


@pytest.mark.parametrize(
    ("options", "reaches_far"),
    [({}, False), ({"heads": 4}, True), ({"fourier_modes": 2}, True)],
)
def test_only_attention_and_the_multiplier_reach_distant_points(
    options: dict[str, Any], reaches_far: bool
) -> None:
    model = make((32, 32), **({"heads": 0, "fourier_modes": 0, "cycles": 1, "levels": 1} | options))
    x, vector = draw(1, 2, 32, 32), draw(1, 1)
    other = x.clone()
    other[..., 2, 2] += 1
    change = (model(other, vector) - model(x, vector)).abs()
    assert change[..., 2, 2].max() > 1e-6
    assert bool((change[..., 20:, 20:] > 0).any()) is reaches_far
    assert len(model.blocks) == (1 if model.config.heads else 0)


def test_equation_terms_of_a_linear_flow_are_exact() -> None:
    spec = tiny_spec((10, 14))
    terms = EquationTerms(spec).double()
    terms.set_normalizer(Normalizer((0.5, -1.0), (2.0, 3.0)))
    y, x = torch.meshgrid(torch.arange(10.0) * 0.2, torch.arange(14.0) * 0.3, indexing="ij")
    u, v = 1.5 * x - 0.5 * y, 0.7 * y + 2.0
    frame = torch.stack(((u - 0.5) / 2.0, (v + 1.0) / 3.0))[None].double()
    terms.scales.fill_(1.0)
    found = terms(frame, None)[0]
    expected = torch.stack((u * u, u * v, v * v, 1.5 * u - 0.5 * v, 0.7 * v)).double()
    assert_close(found, expected, rtol=1e-5)
    known = torch.ones(1, 10, 14, dtype=torch.bool)
    known[0, 5, 6] = False
    found = terms(frame, known)[0]
    assert not found[:, 5, 6].any()
    assert not found[3:, 4:7, 5:8].any() and found[3:, 3, 6].all() and found[0, 4, 6]
    terms.calibrate(frame, known)
    rms = terms(frame, known)[0]
    defined = torch.tensor([139.0] * 3 + [131.0] * 2).double()
    assert_close(rms.square().sum((1, 2)) / defined, torch.ones(5).double(), rtol=1e-6)


def test_a_grid_that_is_too_small_is_refused_with_the_levels_that_fit() -> None:
    with refused("levels=2", "6 x 20", "8 x 8"):
        tiny_model("pibert-mr", tiny_spec((6, 20)), levels=3)
    model = make(levels=2)
    for call in (model, model.embed, model.encode, model.reconstruct, model.consistency):
        with refused("3 x 20", "at least 4 x 4 points"):
            call(draw(1, 2, 3, 20))
    with refused("1 x 20", "at least 4 x 4 points"):
        tiny_model("pibert-mr", tiny_spec((1, 20)))
