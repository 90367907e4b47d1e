from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pibert.fields import Batch
from pibert.pretraining import phases
from pibert.pretraining.adversarial import WindowResidual, attack
from pibert.sample_rng import sample_seeds
from tests.pretraining.windows import WindowSet, solver_set, street_set

SETS: dict[str, Callable[[], WindowSet]] = {
    "turbulence": lambda: solver_set("incompressible", 1),
    "heat": lambda: solver_set("heat", 2),
    "street": street_set,
}


def excess(data: WindowSet, before: Tensor, after: Tensor, batch: Batch) -> Tensor:
    """Mean squared residual over that of the valid window, averaged over the terms."""
    terms = WindowResidual(data.spec, data.normalizer)
    counted = terms.counted(before, batch.mask)
    sizes = [terms.mean_squares(x, batch.parameters, counted) for x in (after, before)]
    return (sizes[0] / sizes[1]).mean(1)


@pytest.mark.parametrize("name", SETS)
def test_the_change_just_exceeds_kappa(name: str) -> None:
    data = SETS[name]()
    batch = data.samples.batch(range(0, len(data.samples), 4))
    settings = {"adversarial_amplitude": (1e-4, 0.8)}
    x, _ = data.negatives(kappa=3.0, **settings).make("adversarial", batch, data.model())
    found = excess(data, batch.x, x, batch)
    assert found.min() > 3 * 0.999
    assert found.median() < 3 * 1.5


@pytest.mark.parametrize("name", SETS)
def test_the_model_is_fooled_more_than_by_a_random_change_of_equal_size(name: str) -> None:
    data = SETS[name]()
    model = data.model().eval()
    batch = data.samples.batch(range(0, len(data.samples), 3))
    x, _ = data.negatives(kappa=4.0).make("adversarial", batch, model)
    weight = phases.smooth_weight(data.spec.grid.shape, 0.25, x)
    energy = phases.mode_energy(batch.x) * batch.x.var((-2, -1), correction=0, keepdim=True)
    size = (x - batch.x).square().mean((-2, -1)).sum(1)
    gains = []
    with torch.no_grad():
        before = model.consistency(batch.x, batch.parameters, batch.mask)
        for seed in range(4):
            seeds = sample_seeds(seed, 1, batch.sample)
            angles = phases.random_angles(seeds, "other", batch.x) * weight
            found = (energy * angles.square()).sum((1, 2, 3))
            angles = angles * (size / found).sqrt()[:, None, None, None]
            other = phases.turned(batch.x, angles, batch.mask)
            gains.append(model.consistency(other, batch.parameters, batch.mask) - before)
        gain = model.consistency(x, batch.parameters, batch.mask) - before
    spread = torch.stack(gains).std()
    assert gain.mean() > torch.stack(gains).mean() + 0.5 * spread


def test_the_change_is_smooth_also_where_the_field_is_not() -> None:
    """The turns of a field with a flat spectrum show the fading of the angles themselves."""
    shape, cutoff = (32, 48), 0.25
    x = torch.randn(4, 2, *shape, generator=torch.Generator().manual_seed(0))
    made = attack(
        x,
        torch.ones(4, *shape, dtype=torch.bool),
        sample_seeds(0, 0, torch.arange(4)),
        lambda y: y[:, 0, 3, 5],  # one point: its gradient is as rough as can be
        lambda y: y.diff(dim=-1).square().mean((1, 2, 3))[:, None],
        kappa=1e9,
        steps=1,
        amplitude=(0.05, 0.1),
        cutoff=cutoff,
    )
    power = torch.fft.rfft2(made - x).abs().square().sum((0, 1))
    k = torch.hypot(torch.fft.fftfreq(shape[0])[:, None], torch.fft.rfftfreq(shape[1]))
    # At twice the cutoff the angles are down to exp(-4), and their power to exp(-8).
    assert power[k > 2 * cutoff / 2].sum() < 2e-3 * power.sum()


def test_the_model_is_left_as_it_was() -> None:
    data = solver_set("incompressible", 1)
    model = data.model().train()
    model.blocks[0].eval()
    flags = [module.training for module in model.modules()]
    batch = data.samples.batch(range(4))
    x, _ = data.negatives().make("adversarial", batch, model)
    again, _ = data.negatives().make("adversarial", batch, model)
    assert torch.equal(x, again)  # no dropout while the model is looked at
    assert [module.training for module in model.modules()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not x.requires_grad
