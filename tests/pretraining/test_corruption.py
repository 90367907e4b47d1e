"""What a model sees at hidden points, and the noise that could be a flow."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.physics import derivatives
from pibert.pretraining.corruption import corrupt, surrogate
from pibert.pretraining.masks import Masking, choose
from tests.pretraining.batches import make_batch

GRID = Grid.periodic((24, 36), dx=0.3, dy=0.2)
SPEC = FieldSpec(family="incompressible", channels=("p", "v", "u"), grid=GRID)
NORMALIZER = Normalizer((0.2, 1.0, -0.5), (3.0, 0.5, 2.0))


def rough(b: int = 3, frames: int = 1, shape: tuple[int, int] = GRID.shape) -> Tensor:
    """Standardised fields that are neither periodic nor free of divergence."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(b, 3 * frames, *shape, generator=generator, dtype=torch.float64)
    return x.cumsum(-1).cumsum(-2) / 10 + 0.7


def velocity(noise: Tensor, normalizer: Normalizer = NORMALIZER) -> tuple[Tensor, Tensor]:
    physical = normalizer.invert(noise[:, -3:])
    return physical[:, 2], physical[:, 1]


def mode_energy(*fields: Tensor) -> Tensor:
    """Energy of every mode of fluctuations, the components added."""
    modes = [torch.fft.fft2(f - f.mean((-2, -1), keepdim=True)).abs().square() for f in fields]
    return torch.stack(modes).sum(0)


@pytest.mark.parametrize("shape", [(24, 36), (15, 21)])
def test_the_noise_has_no_divergence_and_the_energy_of_every_mode(shape: tuple[int, int]) -> None:
    spec = replace(SPEC, grid=replace(GRID, shape=shape))
    x = rough(frames=2, shape=shape)
    noise = surrogate(make_batch(x), spec, NORMALIZER)
    for frame in (slice(0, 3), slice(3, 6)):
        u, v = velocity(noise[:, frame])
        gradient = derivatives.ddx(u, spec.grid, "spectral").square().mean().sqrt()
        total = derivatives.divergence(u, v, spec.grid, "spectral")
        assert float(total.abs().max()) < 1e-12 * float(gradient)
        expected = mode_energy(*velocity(x[:, frame]))
        torch.testing.assert_close(mode_energy(u, v), expected, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(
            mode_energy(noise[:, frame][:, 0]), mode_energy(x[:, frame][:, 0]), rtol=1e-8, atol=1e-9
        )


@pytest.mark.parametrize("family", ["euler", "reaction-diffusion"])
def test_other_families_keep_the_spectrum_of_every_channel(family: str) -> None:
    x = rough()
    noise = surrogate(make_batch(x), replace(SPEC, family=family), NORMALIZER)
    torch.testing.assert_close(mode_energy(noise), mode_energy(x), rtol=1e-8, atol=1e-9)


def test_noise_depends_on_sample_and_epoch_but_not_on_the_batch() -> None:
    x = rough(1).expand(2, -1, -1, -1)
    batch = make_batch(x)
    noise = surrogate(batch, SPEC, NORMALIZER)
    assert float((noise[0] - noise[1]).abs().mean()) > 0.1
    alone = surrogate(batch.map(lambda tensor: tensor[1:]), SPEC, NORMALIZER)
    torch.testing.assert_close(alone[0], noise[1])
    later = surrogate(batch.reseeded(0, 1), SPEC, NORMALIZER)
    assert float((later - noise).abs().mean()) > 0.1


def test_hidden_points_are_removed_noised_and_kept_in_their_shares() -> None:
    known = torch.ones(GRID.shape, dtype=torch.bool)
    known[:5] = False
    batch = make_batch(rough(400).float(), known)
    masking = Masking(kinds=("pixels",), ratio=0.3)
    hidden = choose(batch, masking, SPEC, NORMALIZER)
    seen = corrupt(batch, hidden, masking, SPEC, NORMALIZER)
    assert torch.equal(seen.hidden, hidden.points)
    unknown, total = batch.mask & ~seen.mask, int(seen.hidden.sum())
    changed = (seen.x != batch.x).any(1)
    assert not bool((changed & ~seen.hidden).any())
    assert bool((seen.x[unknown[:, None].expand_as(seen.x)] == 0).all())
    assert not bool((seen.mask & ~batch.mask).any())
    assert int(unknown.sum()) / total == pytest.approx(0.8, abs=0.005)
    assert int((changed & ~unknown).sum()) / total == pytest.approx(0.1, abs=0.005)
    noise = surrogate(batch, SPEC, NORMALIZER)
    noised = changed & ~unknown
    assert torch.equal(seen.x.movedim(1, 0)[:, noised], noise.movedim(1, 0)[:, noised])


def test_filled_points_may_be_hidden_but_do_not_count() -> None:
    batch = make_batch(rough())
    filled = torch.zeros_like(batch.mask)
    filled[:, ::2] = True
    masking = Masking(ratio=0.6)
    hidden = choose(batch, masking, SPEC, NORMALIZER)
    plain, marked = (
        corrupt(own, hidden, masking, SPEC, NORMALIZER)
        for own in (batch, replace(batch, filled=filled))
    )
    assert torch.equal(plain.x, marked.x) and torch.equal(plain.mask, marked.mask)
    assert torch.equal(marked.hidden, hidden.points & ~filled)
    assert bool(marked.hidden.any()) and bool((hidden.points & filled).any())
