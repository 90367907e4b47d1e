"""The masked auto-encoder: what hidden patches may not do, and that it learns to fill."""

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pibert.models.baselines.autoencoder import MaskedAutoencoder
from pibert.models.baselines.patches import Positions, from_patches, to_patches
from tests.helpers import assert_close, randomise

SHAPE = (12, 20)


def make(channels: int = 2, **changes: int) -> MaskedAutoencoder:
    sizes = {"patch": 4, "width": 16, "heads": 2, "encoder_depth": 2, "decoder_depth": 1} | changes
    return MaskedAutoencoder(channels, SHAPE, **sizes)


def random_weights() -> MaskedAutoencoder:
    return cast(MaskedAutoencoder, randomise(cast(Any, make())))


def some_masks(b: int = 3) -> Tensor:
    """Patches hidden as a whole, about half of them."""
    coarse = torch.rand(b, 3, 5, generator=torch.Generator().manual_seed(2)) > 0.5
    return coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)


def test_patches_are_cut_row_by_row_and_put_back() -> None:
    x = torch.arange(2 * 3 * 5.0).view(1, 2, 3, 5)
    patches = to_patches(x, 2)
    assert patches.shape == (1, 6, 8)
    # The third of the first row is cut from columns 4 and 4 again, of both channels.
    assert patches[0, 2].tolist() == [4, 4, 9, 9, 19, 19, 24, 24]
    assert torch.equal(from_patches(patches, 2, (3, 5)), x)


def test_positions_of_another_lattice_are_interpolated() -> None:
    positions = Positions((3, 5), 2)
    with torch.no_grad():
        positions.table.copy_(torch.full((3, 5, 2), 0.7))
    assert torch.allclose(positions((4, 6)), torch.full((24, 2), 0.7))
    assert torch.equal(positions((3, 5)), positions.table.flatten(0, 1))


def test_features_are_those_of_an_encoder_that_never_saw_the_hidden_patches() -> None:
    model = random_weights().double()
    frames, known = torch.randn(3, 2, *SHAPE, dtype=torch.float64), some_masks()
    features, visible = model.features(frames, known)
    assert torch.equal(visible, known[:, ::4, ::4].flatten(1))
    for i in range(3):
        whole = torch.cat((frames[i : i + 1], torch.ones(1, 1, *SHAPE, dtype=torch.float64)), 1)
        tokens = model.embed(to_patches(whole, 4)) + model.positions((3, 5))
        tokens = tokens[:, visible[i]]
        for block in model.encoder:
            tokens = block(tokens)
        assert torch.allclose(features[i, visible[i]], model.norm(tokens)[0], atol=1e-10)


def test_values_at_hidden_points_do_not_matter() -> None:
    model = random_weights()
    frames, known = torch.randn(3, 2, *SHAPE), some_masks()
    known[:, 0, 0] = ~known[:, 0, 0]  # patches may be visible in part
    other = torch.where(known[:, None], frames, float("nan"))
    assert torch.equal(model(frames, known), model(other, known))


def test_a_known_zero_is_told_from_an_unknown_point() -> None:
    model = random_weights()
    frames, known = torch.zeros(1, 2, *SHAPE), torch.ones(1, *SHAPE, dtype=torch.bool)
    less = known.clone()
    less[:, 5, 6:8] = False
    assert not torch.allclose(model(frames, known), model(frames, less), atol=1e-4)


def test_a_frame_of_which_nothing_is_known_gives_finite_values_and_gradients() -> None:
    model = random_weights()
    found = model(torch.randn(2, 2, *SHAPE), torch.zeros(2, *SHAPE, dtype=torch.bool))
    assert found.isfinite().all()
    assert_close(found[0], found[1])
    found.square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("shape", [(12, 20), (9, 7), (17, 24)])
def test_any_grid_works_and_an_untrained_one_fills_with_the_mean(shape: tuple[int, int]) -> None:
    frames, known = torch.randn(2, 2, *shape), torch.ones(2, *shape, dtype=torch.bool)
    assert torch.equal(make()(frames, known), torch.zeros_like(frames))


def test_it_learns_to_fill_in_hidden_patches() -> None:
    """A field that one number decides: a wave of random phase. Filling in the mean gives 1."""
    torch.manual_seed(0)
    model = make(1, width=32)
    x = torch.arange(20) * 2 * math.pi / 20
    y = torch.arange(12) * 2 * math.pi / 12

    def frames(b: int) -> Tensor:
        phase = 2 * math.pi * torch.rand(b, 1, 1, 1)
        return math.sqrt(2) * torch.sin(x + y[:, None] + phase)

    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(120):
        fields = frames(32)
        known = (torch.rand(32, 3, 5) > 0.5).repeat_interleave(4, 1).repeat_interleave(4, 2)
        hidden = ~known[:, None]
        loss = (hidden * (model(fields, known) - fields).square()).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.15
