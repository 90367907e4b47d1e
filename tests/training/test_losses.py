"""The paper's losses: values by hand and by brute force, units, masks, gradients."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.training import losses
from pibert.training.losses import PAPER_WEIGHTS, LossScales, LossWeights

ALL = LossWeights(reg=0.5, div=2.0, lap=3.0, bnd=0.7)


def random_state(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def plain_scales(grid: Grid) -> LossScales:
    """Standardised data of mean 0 and std 1: physical and standardised fields are the same."""
    return LossScales(
        spec=FieldSpec(family="incompressible", grid=grid),
        normalizer=Normalizer.identity(2),
        reference_velocity=1.0,
    )


def uneven_scales(grid: Grid, velocity: float = 1.0) -> LossScales:
    normalizer = Normalizer((0.3 * velocity, -0.1 * velocity), (0.5 * velocity, 2.0 * velocity))
    return LossScales.from_training(FieldSpec(family="incompressible", grid=grid), normalizer)


def polynomial_state(grid: Grid, scales: LossScales) -> Tensor:
    """A standardised state whose physical velocity is u = 3 x^2 + y, v = 2 y^2 - x y."""
    x, y = grid.coordinates(torch.float64)
    return scales.normalizer.apply(torch.stack((3 * x**2 + y, 2 * y**2 - x * y)))[None]


# Weights and scales


def test_the_published_weights() -> None:
    base, large = PAPER_WEIGHTS["base"], PAPER_WEIGHTS["large"]
    assert (base.reg, base.div, base.lap, base.bnd) == (5e-5, 1.0, 0.12, 2e-3)
    assert math.isclose(large.reg * large.div, 1.6e-5)
    assert math.isclose(large.reg * large.lap, 2e-6)
    assert large.bnd == 1e-3


def test_a_wrong_weight_is_named() -> None:
    with pytest.raises(ValueError, match="loss weight lap must be zero or positive, found -1"):
        LossWeights(lap=-1.0)
    with pytest.raises(ValueError, match="loss weight reg must be zero or positive, found nan"):
        LossWeights(reg=math.nan)


def test_wrong_scales_are_named() -> None:
    with pytest.raises(ValueError, match=r"each of \('u', 'v'\), found 3"):
        LossScales.from_training(FieldSpec(family="incompressible"), Normalizer.identity(3))
    with pytest.raises(ValueError, match="reference velocity must be positive and finite, found 0"):
        LossScales(
            spec=FieldSpec(family="incompressible"),
            normalizer=Normalizer.identity(2),
            reference_velocity=0.0,
        )


def test_the_reference_velocity_is_the_rms_of_the_components() -> None:
    spec = FieldSpec(family="incompressible", channels=("p", "v", "u"))
    scales = LossScales.from_training(spec, Normalizer((9.0, 9.0, 9.0), (100.0, 3.0, 1.0)))
    assert math.isclose(scales.reference_velocity, math.sqrt(5.0))


# Values


def test_reconstruction_is_the_mean_squared_error() -> None:
    target = torch.zeros(2, 2, 1, 2)
    prediction = target.clone()
    prediction[0, 1, 0, 0] = 4.0
    assert losses.reconstruction(prediction, target).item() == 16.0 / 8


def test_derivative_terms_by_hand_on_unequal_spacing_and_a_non_square_grid() -> None:
    # Second-order stencils are exact for quadratics, at the sides too. By hand:
    # u_x + v_y = 6x + 4y - x = 5x + 4y, lap u = 6, lap v = 4; unit length h = sqrt(0.5 * 0.08).
    grid = Grid((5, 9), dx=0.5, dy=0.08, origin=(-1.0, 2.0))
    scales = uneven_scales(grid)
    state = polynomial_state(grid, scales)
    h, velocity = 0.2, math.sqrt((0.5**2 + 2.0**2) / 2)
    x, y = grid.coordinates(torch.float64)
    expected = ((5 * x + 4 * y) * h / velocity).square().mean()
    torch.testing.assert_close(losses.divergence(state, scales), expected)
    expected_lap = torch.tensor((6**2 + 4**2) * (h**2 / velocity) ** 2, dtype=torch.float64)
    torch.testing.assert_close(losses.laplacian(state, scales), expected_lap)


def test_swapped_velocity_channels_are_found_by_name() -> None:
    grid = Grid((5, 9), dx=0.5, dy=0.08)
    scales = uneven_scales(grid)
    state = polynomial_state(grid, scales)
    mean, std = scales.normalizer.mean, scales.normalizer.std
    swapped = LossScales.from_training(
        FieldSpec(family="incompressible", channels=("p", "v", "u"), grid=grid),
        Normalizer((1.0, mean[1], mean[0]), (7.0, std[1], std[0])),
    )
    other = torch.cat((random_state(1, 1, 5, 9), state.flip(1)), 1)
    for term in (losses.divergence, losses.laplacian):
        torch.testing.assert_close(term(other, swapped), term(state, scales))


def test_standardised_fields_on_a_unit_grid_give_the_papers_terms() -> None:
    z = random_state(3, 2, 6, 8)
    scales = plain_scales(Grid.periodic((6, 8)))
    u, v = z[:, 0], z[:, 1]
    divergence = (u.roll(-1, 2) - u.roll(1, 2) + v.roll(-1, 1) - v.roll(1, 1)) / 2

    def laplacian(f: Tensor) -> Tensor:
        neighbours = f.roll(1, 1) + f.roll(-1, 1) + f.roll(1, 2) + f.roll(-1, 2)
        return neighbours - 4 * f

    torch.testing.assert_close(losses.divergence(z, scales), (divergence**2).mean())
    torch.testing.assert_close(
        losses.laplacian(z, scales), (laplacian(u) ** 2 + laplacian(v) ** 2).mean()
    )


def test_a_solenoidal_flow_has_no_divergence_although_its_components_are_scaled_apart() -> None:
    grid = Grid.periodic((12, 16), dx=2 * math.pi / 16, dy=2 * math.pi / 12)
    x, y = grid.coordinates(torch.float64)
    # Central differences multiply sin and cos of both directions by their own factors.
    factor_x, factor_y = math.sin(grid.dx) / grid.dx, math.sin(grid.dy) / grid.dy
    u = torch.cos(x) * torch.sin(y) / factor_x
    v = -torch.sin(x) * torch.cos(y) / factor_y
    scales = uneven_scales(grid)
    state = scales.normalizer.apply(torch.stack((u, v)))[None]
    assert losses.divergence(state, scales).item() < 1e-28
    standardised = plain_scales(grid)
    assert losses.divergence(state, standardised).item() > 1e-2


@pytest.mark.parametrize("body", [False, True], ids=["no body", "body"])
def test_the_choice_of_units_changes_no_term(body: bool) -> None:
    solid = torch.zeros(7, 10, dtype=torch.bool)
    solid[3, 4:6] = True
    z, target = random_state(2, 2, 7, 10), random_state(2, 2, 7, 10, seed=1)

    def logs(velocity: float, length: float) -> dict[str, Tensor]:
        grid = Grid((7, 10), 0.3 * length, 0.2 * length, body=solid if body else None)
        scales = uneven_scales(grid, velocity)
        return losses.total_loss(z, target, weights=ALL, scales=scales)[1]

    si, mm = logs(1.0, 1.0), logs(1000.0, 0.001)
    assert set(si) == {"loss", "reconstruction", "divergence", "laplacian", "boundary"}
    for name in si:
        torch.testing.assert_close(mm[name], si[name], msg=name)


# Boundary


def test_the_default_boundary_is_the_border_and_the_rim_of_the_body() -> None:
    body = torch.zeros(6, 7, dtype=torch.bool)
    body[2:4, 3] = True
    picture = """
        #######
        #..#..#
        #.#.#.#
        #.#.#.#
        #..#..#
        #######
    """.split()
    expected = torch.tensor([[point == "#" for point in row] for row in picture])
    assert torch.equal(losses.boundary_mask(Grid((6, 7), body=body)), expected)


def test_periodic_sides_have_no_border_and_the_rim_of_a_body_wraps() -> None:
    sides = Sides(Boundary.PERIODIC, Boundary.PERIODIC, Boundary.WALL, Boundary.WALL)
    body = torch.zeros(5, 4, dtype=torch.bool)
    body[2, 0] = True
    mask = losses.boundary_mask(Grid((5, 4), sides=sides, body=body))
    assert mask.int().tolist() == [
        [1, 1, 1, 1],
        [1, 0, 0, 0],
        [0, 1, 0, 1],
        [1, 0, 0, 0],
        [1, 1, 1, 1],
    ]
    assert not losses.boundary_mask(Grid.periodic((5, 4))).any()


def test_a_body_at_an_open_side_does_not_wrap() -> None:
    body = torch.zeros(5, 6, dtype=torch.bool)
    body[:, 0] = True
    mask = losses.boundary_mask(Grid((5, 6), body=body))
    assert not mask[:, 0].any()
    assert mask[:, 1].all() and mask[:, -1].all()
    assert not mask[2, 2:-1].any()


def test_the_boundary_term_is_a_mean_over_samples_channels_and_mask() -> None:
    grid = Grid((4, 5))
    z, target = random_state(1, 2, 4, 5), random_state(1, 2, 4, 5, seed=1)
    mask = losses.boundary_mask(grid)
    one = losses.boundary(z, target, mask)
    error = (z - target)[0].square()
    by_hand = sum(error[:, j, i].sum() for j in range(4) for i in range(5) if mask[j, i])
    torch.testing.assert_close(one, by_hand / (2 * 14))
    many = losses.boundary(z.repeat(6, 1, 1, 1), target.repeat(6, 1, 1, 1), mask)
    torch.testing.assert_close(many, one)


# Unknown points


def test_unknown_points_count_in_no_term_whatever_they_hold() -> None:
    grid = Grid((7, 9), dx=0.5, dy=0.2)
    scales = uneven_scales(grid)
    z, target = random_state(2, 2, 7, 9), random_state(2, 2, 7, 9, seed=1)
    known = torch.ones(2, 7, 9, dtype=torch.bool)
    known[0, 3, 4] = False
    known[1, 0, 0] = False
    one, _ = losses.total_loss(z, target, weights=ALL, scales=scales, known=known)
    target = torch.where(known[:, None], target, math.nan)
    z = torch.where(known[:, None], z, 1e6).requires_grad_()
    other, logs = losses.total_loss(z, target, weights=ALL, scales=scales, known=known)
    torch.testing.assert_close(other, one)
    assert all(value.isfinite() for value in logs.values())
    (gradient,) = torch.autograd.grad(other, z)
    assert gradient.isfinite().all()
    assert (gradient.masked_select(~known[:, None]) == 0).all()
    assert (gradient.masked_select(known[:, None]) != 0).all()


def test_masked_terms_by_brute_force() -> None:
    z, target = random_state(2, 2, 6, 8), random_state(2, 2, 6, 8, seed=1)
    known = random_state(2, 6, 8, seed=2) > -1.2
    grid = Grid.periodic((6, 8), dx=2.0, dy=0.5)
    scales = plain_scales(grid)
    expected = []
    for b in range(2):
        squares, divergences, laplacians = [], [], []
        for j in range(6):
            for i in range(8):
                if not known[b, j, i]:
                    continue
                squares += [float((z - target)[b, c, j, i] ** 2) for c in (0, 1)]
                n, s, e, w = (b, (j + 1) % 6, i), (b, j - 1, i), (b, j, (i + 1) % 8), (b, j, i - 1)
                if known[n] and known[s] and known[e] and known[w]:
                    u, v = z[:, 0], z[:, 1]
                    value = (u[e] - u[w]) / 4.0 + (v[n] - v[s]) / 1.0
                    divergences.append(float(value**2))
                    second = [
                        (f[e] + f[w] - 2 * f[b, j, i]) / 4.0 + (f[n] + f[s] - 2 * f[b, j, i]) / 0.25
                        for f in (u, v)
                    ]
                    laplacians.append(float(second[0] ** 2 + second[1] ** 2))
        assert 0 < len(laplacians) < len(squares) / 2 < 6 * 8
        expected.append([sum(terms) / len(terms) for terms in (squares, divergences, laplacians)])
    found = (
        losses.reconstruction(z, target, known),
        losses.divergence(z, scales, known),
        losses.laplacian(z, scales, known),
    )
    assert len({int(n) for n in known.sum((1, 2))}) == 2
    for value, first, second_sample in zip(found, *expected, strict=True):
        assert math.isclose(value.item(), (first + second_sample) / 2, rel_tol=1e-12)


def test_a_sample_weighs_the_same_however_many_of_its_points_are_known() -> None:
    # Errors 1, 2 at one known point of the first sample and 3 at the other five of the second:
    # (1 + 4) / 2 = 2.5 and 9; the third has nothing to count and still is a third of the batch.
    prediction, target = torch.zeros(3, 2, 2, 3), torch.full((3, 2, 2, 3), math.nan)
    known = torch.zeros(3, 2, 3, dtype=torch.bool)
    known[0, 1, 2] = True
    target[0, :, 1, 2] = torch.tensor([1.0, 2.0])
    known[1] = True
    known[1, 0, 0] = False
    target[1][:, known[1]] = 3.0
    assert losses.reconstruction(prediction, target, known).item() == pytest.approx(11.5 / 3)
    # Of the boundary M, the top row: one point in the first sample, three in the second.
    top = torch.tensor([[False] * 3, [True] * 3])
    assert losses.boundary(prediction, target, top, known).item() == pytest.approx(11.5 / 3)
    # The bottom row: none in the first sample, two in the second.
    assert losses.boundary(prediction, target, ~top, known).item() == pytest.approx(9.0 / 3)


def test_parts_of_a_batch_weighted_by_their_samples_give_the_whole() -> None:
    scales = uneven_scales(Grid((7, 9), 0.5, 0.2))
    z, target = random_state(5, 2, 7, 9), random_state(5, 2, 7, 9, seed=1)
    known = random_state(5, 7, 9, seed=2) > torch.linspace(-3, 0, 5).view(5, 1, 1)
    known[3] = False

    def gradient(part: slice) -> tuple[Tensor, Tensor]:
        x = z[part].clone().requires_grad_()
        loss, _ = losses.total_loss(x, target[part], weights=ALL, scales=scales, known=known[part])
        return loss.detach(), torch.autograd.grad(loss, x)[0]

    whole, parts = gradient(slice(None)), [gradient(slice(2)), gradient(slice(2, 5))]
    torch.testing.assert_close(2 / 5 * parts[0][0] + 3 / 5 * parts[1][0], whole[0])
    torch.testing.assert_close(torch.cat((2 / 5 * parts[0][1], 3 / 5 * parts[1][1])), whole[1])


def test_a_body_counts_as_unknown() -> None:
    body = torch.zeros(7, 9, dtype=torch.bool)
    body[3, 3:6] = True
    bare, solid = Grid((7, 9), 0.5, 0.2), Grid((7, 9), 0.5, 0.2, body=body)
    z, target = random_state(2, 2, 7, 9), random_state(2, 2, 7, 9, seed=1)
    mask = losses.boundary_mask(solid)
    with_body = losses.total_loss(z, target, weights=ALL, scales=uneven_scales(solid))[1]
    with_mask = losses.total_loss(
        z, target, weights=ALL, scales=uneven_scales(bare), known=~body, mask=mask
    )[1]
    for name, value in with_body.items():
        torch.testing.assert_close(value, with_mask[name], msg=name)


def test_a_body_of_another_size_is_refused() -> None:
    scales = uneven_scales(Grid((7, 9), body=torch.zeros(7, 9, dtype=torch.bool)))
    z = random_state(1, 2, 7, 8)
    with pytest.raises(ValueError, match=r"body mask has shape \(7, 9\), but the field \(7, 8\)"):
        losses.total_loss(z, z, weights=ALL, scales=scales)


def test_a_mean_over_nothing_is_zero_and_has_a_zero_gradient() -> None:
    z = random_state(1, 2, 6, 6).requires_grad_()
    nothing = torch.zeros(6, 6, dtype=torch.bool)
    scales = uneven_scales(Grid((6, 6)))
    loss, _ = losses.total_loss(z, z.detach() + 1, weights=ALL, scales=scales, known=nothing)
    assert loss.item() == 0.0
    assert (torch.autograd.grad(loss, z)[0] == 0).all()


# The sum


def test_the_total_is_the_weighted_sum_and_the_logs_are_detached() -> None:
    scales = uneven_scales(Grid((6, 8), 0.5, 0.2))
    z, target = random_state(2, 2, 6, 8).requires_grad_(), random_state(2, 2, 6, 8, seed=1)
    loss, logs = losses.total_loss(z, target, weights=ALL, scales=scales)
    by_hand = (
        losses.reconstruction(z, target)
        + 0.5 * (2.0 * losses.divergence(z, scales) + 3.0 * losses.laplacian(z, scales))
        + 0.7 * losses.boundary(z, target, losses.boundary_mask(scales.spec.grid))
    )
    torch.testing.assert_close(loss, by_hand)
    assert logs["loss"] == loss
    assert not any(value.requires_grad for value in logs.values())
    assert torch.autograd.gradcheck(
        lambda x: losses.total_loss(x, target, weights=ALL, scales=scales)[0], z
    )


def test_a_term_without_weight_is_neither_computed_nor_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("divergence", "laplacian", "boundary"):
        monkeypatch.setattr(losses, name, None)
    scales = uneven_scales(Grid((6, 8)))
    z, target = random_state(2, 2, 6, 8), random_state(2, 2, 6, 8, seed=1)
    loss, logs = losses.total_loss(z, target, weights=LossWeights(), scales=scales)
    assert set(logs) == {"loss", "reconstruction"}
    assert loss == logs["loss"] == logs["reconstruction"] == losses.reconstruction(z, target)


def test_masks_are_made_once_and_serve_training_after_a_validation_in_inference_mode() -> None:
    body = torch.zeros(6, 8, dtype=torch.bool)
    body[2, 3] = True
    scales = uneven_scales(Grid((6, 8), 0.5, 0.2, body=body))
    z, target = random_state(2, 2, 6, 8), random_state(2, 2, 6, 8, seed=1)
    with torch.inference_mode():
        losses.total_loss(z, target, weights=ALL, scales=scales)
    made = scales.masks(z)
    z.requires_grad_()
    losses.total_loss(z, target, weights=ALL, scales=scales)[0].backward()
    assert z.grad is not None and (z.grad[:, :, 2, 3] == 0).all()
    assert all(a is b for a, b in zip(scales.masks(z), made, strict=True))
    small = random_state(1, 2, 6, 7)
    with pytest.raises(ValueError, match=r"body mask has shape \(6, 8\)"):
        scales.masks(small)


def test_a_time_axis_is_averaged_like_a_batch() -> None:
    scales = uneven_scales(Grid((6, 8)))
    z, target = random_state(2, 3, 2, 6, 8), random_state(2, 3, 2, 6, 8, seed=1)
    known = random_state(2, 3, 6, 8, seed=2) > -2.0
    long = losses.total_loss(z, target, weights=ALL, scales=scales, known=known)[1]
    flat = losses.total_loss(
        z.flatten(0, 1),
        target.flatten(0, 1),
        weights=ALL,
        scales=scales,
        known=known.flatten(0, 1),
    )[1]
    for name, value in long.items():
        torch.testing.assert_close(value, flat[name])


@pytest.mark.parametrize(
    ("channels", "family"),
    [(("h",), None), (("u", "v"), "reaction-diffusion"), (("u", "v"), "wave")],
)
def test_without_velocity_only_zero_weights_are_accepted(
    channels: tuple[str, ...], family: str | None
) -> None:
    spec = FieldSpec(channels=channels, grid=Grid((6, 8)), family=family)
    count = len(channels)
    scales = LossScales.from_training(spec, Normalizer((0.0,) * count, (3.0,) * count))
    assert scales.reference_velocity == 1.0
    z, target = random_state(2, count, 6, 8), random_state(2, count, 6, 8, seed=1)
    _, logs = losses.total_loss(z, target, weights=LossWeights(bnd=1.0), scales=scales)
    assert set(logs) == {"loss", "reconstruction", "boundary"}
    with pytest.raises(ValueError, match=r"the divergence loss needs a velocity .* set its weight"):
        losses.total_loss(z, target, weights=ALL, scales=scales)
    with pytest.raises(ValueError, match=r"need a velocity, channels 'u' and 'v' of a flow, found"):
        losses.total_loss(z, target, weights=replace(ALL, div=0.0), scales=scales)


def test_a_compressible_flow_has_no_divergence_loss() -> None:
    spec = FieldSpec(channels=("rho", "u", "v", "p"), grid=Grid((6, 8)), family="euler")
    scales = LossScales.from_training(spec, Normalizer.identity(4))
    z, target = random_state(2, 4, 6, 8), random_state(2, 4, 6, 8, seed=1)
    _, logs = losses.total_loss(z, target, weights=replace(ALL, div=0.0), scales=scales)
    assert set(logs) == {"loss", "reconstruction", "laplacian", "boundary"}
    with pytest.raises(ValueError, match="divergence is zero, found .* of family 'euler'"):
        losses.total_loss(z, target, weights=ALL, scales=scales)


@pytest.mark.parametrize(
    ("channels", "family", "expected"),
    [
        (("u", "v"), "incompressible", True),
        (("u", "v", "p"), "incompressible-momentum", True),
        (("rho", "u", "v", "p"), "euler", False),
        (("u",), "heat", False),
        (("u", "v"), None, None),  # nobody says
        (("T",), None, False),
    ],
)
def test_the_family_says_whether_the_divergence_is_zero(
    channels: tuple[str, ...], family: str | None, expected: bool | None
) -> None:
    spec = FieldSpec(channels=channels, family=family)
    scales = LossScales.from_training(spec, Normalizer.identity(len(channels)))
    assert scales.is_solenoidal is expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_predictions_are_differentiated_in_single(dtype: torch.dtype) -> None:
    scales = uneven_scales(Grid((6, 8)))
    z = random_state(2, 2, 6, 8).to(dtype)
    assert losses.laplacian(z, scales).dtype == torch.float32
    assert losses.divergence(z, scales).isfinite()
