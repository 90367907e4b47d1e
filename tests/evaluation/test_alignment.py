"""Alignment: planted relations, bait for leaks, targets and fits worked out by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert import FieldSpec, Grid, Normalizer, Trajectory
from pibert.data.dataset import Samples, Window
from pibert.evaluation.alignment import (
    alignment,
    alignment_of_batches,
    raw_input,
    smoothed,
    two_folds,
    vorticity_targets,
)
from pibert.fields import Batch
from pibert.physics import derivatives
from tests.helpers import randomise, tiny_model, tiny_spec

SHAPE = (14, 22)  # 4 x 6 tokens of 4 x 4 points, the last ones cut
SPEC = tiny_spec(SHAPE)
NORMALIZER = Normalizer((1.1, -0.2), (0.8, 0.5))


def make_trajectory(
    seed: int, frames: int = 8, *, gaps: float = 0.02, speed: float = 0.7
) -> Trajectory:
    """A few waves that drift, with a body and some unknown points that hold nonsense."""
    generator = torch.Generator().manual_seed(seed)
    columns, rows = SPEC.grid.coordinates(torch.float64)
    time = torch.arange(frames)[:, None, None] * speed
    waves = torch.rand(2, 5, 4, generator=generator, dtype=torch.float64)
    states = sum(
        (waves[:, n, 0] + 0.3)[:, None, None, None]
        * torch.sin(
            (4 * waves[:, n, 1] - 2)[:, None, None, None] * columns
            + (4 * waves[:, n, 2] - 2)[:, None, None, None] * rows
            + time
            + 6 * waves[:, n, 3][:, None, None, None]
        )
        for n in range(5)
    )
    assert isinstance(states, Tensor)
    states = states.transpose(0, 1).contiguous()
    valid = torch.rand(frames, *SHAPE, generator=generator) > gaps
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[6:9, 3:6] = True
    states = torch.where(valid[:, None] & ~body, states, 1e6)
    return Trajectory(
        name=str(seed),
        states=states,
        time=torch.arange(frames) * 0.1,
        spec=SPEC,
        parameters={"Re": 100.0 + seed},
        body=body,
        valid=valid,
    )


def make_samples(count: int = 5, *, frames: int = 8, history: int = 1, **more: Any) -> Samples:
    data = [make_trajectory(seed, frames, **more) for seed in range(count)]
    window = Window(history=history, horizon=1)
    return Samples(data, window=window, normalizer=NORMALIZER)


def patch_values(x: Tensor, patch: int = 4) -> Tensor:
    """All that a patch and its surroundings hold, (b, n, d): the vorticity is linear in it."""
    ny, nx = -(-x.shape[-2] // patch) * patch, -(-x.shape[-1] // patch) * patch
    padded = nn.functional.pad(x, (1, nx - x.shape[-1] + 1, 1, ny - x.shape[-2] + 1))
    return nn.functional.unfold(padded, patch + 2, stride=patch).mT


def test_a_linear_relation_is_found_on_trajectories_not_seen() -> None:
    """The embedding is a random linear map of scaled vorticity among other numbers."""
    samples = make_samples(4)
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 6, generator=generator, dtype=torch.float64)

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        assert mask is not None
        batch = make_batch(x, mask)
        told, _ = vorticity_targets(batch, SPEC, NORMALIZER, (1, 2, 4, 8), 4)
        noise = torch.randn(*told.shape[:3], 2, generator=generator, dtype=torch.float64)
        tokens = (7.0 + torch.cat((told, noise), dim=-1) @ mix).flatten(1, 2)
        return torch.cat((tokens, torch.full_like(tokens[:, :1], 1e9)), dim=1)

    found = alignment(embed, samples, patch=4)
    assert list(found) == [1, 2, 4, 8]
    assert all(value == pytest.approx(1.0, abs=1e-4) for value in found.values())


def make_batch(x: Tensor, mask: Tensor) -> Batch:
    count = torch.arange(len(x))
    return Batch(
        x=x,
        y=x[:, None, :2],
        parameters=torch.zeros(len(x), 16),
        mask=mask,
        target_mask=mask[:, None],
        sample=count,
        seeds=count,
    )


def test_the_velocity_around_a_patch_tells_its_vorticity() -> None:
    samples = make_samples(8, gaps=0.0)
    found = alignment(lambda x, p, m: patch_values(x), samples, patch=4, scales=(1,))
    assert found[1] > 0.9
    alone = alignment(lambda x, p, m: patch_values(x)[..., :1], samples, patch=4, scales=(1,))
    assert alone[1] < 0.5


@pytest.mark.parametrize(("count", "frames", "speed"), [(6, 12, 0.02), (1, 62, 0.1)])
def test_an_embedding_that_only_tells_where_it_is_from_earns_nothing(
    count: int, frames: int, speed: float
) -> None:
    """A code for every trajectory, or stretch of a recording, and every place: bait for leaks.

    The flow hardly changes within what has one code. With samples parted at random the code finds
    the vorticity of its neighbours in time; with folds as they are it knows nothing.
    """
    samples = make_samples(count, frames=frames, speed=speed)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randn(len(samples), 24, 300, generator=generator, dtype=torch.float64)
    whole = samples.batch(range(len(samples)))
    origin = {
        x.numpy().tobytes(): samples.locate(n)[0] if count > 1 else n // 6
        for n, x in enumerate(whole.x)
    }

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        return codes[[origin[row.numpy().tobytes()] for row in x]]

    leaky = alignment_of_batches(
        embed, [(whole, torch.arange(len(samples)))], spec=SPEC, normalizer=NORMALIZER, patch=4
    )
    assert all(value > 0.8 for value in leaky.values())
    found = alignment(embed, samples, patch=4)
    assert all(value < 0.02 for value in found.values())


def test_folds_are_whole_trajectories_in_turn() -> None:
    samples = make_samples(3, frames=5)
    chosen, numbers = two_folds(samples)
    assert chosen == list(range(12))
    assert numbers.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    chosen, numbers = two_folds(samples, most=6)
    assert chosen == [0, 2, 4, 6, 8, 10] and numbers.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_single_recording_is_parted_in_time_with_a_gap() -> None:
    samples = make_samples(1, frames=22, history=2)  # windows of inputs t, t + 1 with t = 0 ... 19
    chosen, numbers = two_folds(samples, gap=5)
    early = [s for s, n in zip(chosen, numbers.tolist(), strict=True) if n % 2 == 0]
    late = [s for s, n in zip(chosen, numbers.tolist(), strict=True) if n % 2 == 1]
    assert early == list(range(0, 7)) and late == list(range(13, 20))
    assert late[0] - (early[-1] + 1) - 1 == 5  # frames between the last and the first input
    assert numbers.tolist() == [0] * 4 + [2] * 3 + [1] * 4 + [3] * 3  # halves to choose by
    # A tenth of 21 input frames are 2, frames 9 and 10: three windows hold one of them.
    assert two_folds(samples)[0] == [*range(8), *range(11, 20)]
    with pytest.raises(ValueError, match="both sides"):
        two_folds(samples, gap=19)


def test_targets_by_hand() -> None:
    samples = make_samples(2, history=2)
    batch = samples.batch(range(4))
    found, counted = vorticity_targets(batch, SPEC, NORMALIZER, (1, 2, 8), 4)
    assert found.shape == (4, 4, 6, 3)
    for b in range(4):
        index, start = samples.locate(b)
        trajectory = samples.trajectories[index]
        known = trajectory.known(slice(start, start + 2)).all(0)
        u, v = trajectory.read(slice(start + 1, start + 2))[0]
        field = torch.where(known, torch.ones(()).double(), torch.nan)
        curl = derivatives.vorticity(u * field, v * field, SPEC.grid) * field
        coarse = smoothed(curl[None], ~curl[None].isnan(), 8)[0] * field
        for j, i in [(0, 0), (1, 2), (3, 5), (2, 1), (1, 0)]:
            cell = curl[4 * j : 4 * j + 4, 4 * i : 4 * i + 4]
            values = cell[~cell.isnan()]
            assert bool(counted[b, j, i]) == (len(values) >= cell.numel() / 2)
            if counted[b, j, i]:
                assert torch.allclose(found[b, j, i, 0], values.mean(), rtol=1e-5)
                average = coarse[4 * j : 4 * j + 4, 4 * i : 4 * i + 4][~cell.isnan()].mean()
                assert torch.allclose(found[b, j, i, 2], average, rtol=1e-5)
    assert not counted.all() and counted.float().mean() > 0.5


def test_smoothing_by_hand() -> None:
    """Cells of 2 x 2, the last column cut; centres lie between points, weights 1/4 and 3/4."""
    values = torch.tensor(
        [[[1.0, 3.0, 5.0, 7.0, 20.0], [1.0, 3.0, 5.0, 7.0, 20.0]]], dtype=torch.float64
    )
    where = torch.ones(1, 2, 5, dtype=torch.bool)
    row = [2.0, 0.75 * 2 + 0.25 * 6, 0.25 * 2 + 0.75 * 6, 0.75 * 6 + 0.25 * 20, 0.25 * 6 + 15]
    assert torch.allclose(smoothed(values, where, 2), torch.tensor([[row, row]]).double())
    where[0, :, 2:4] = False  # a cell without a point does not take part
    found = smoothed(torch.where(where, values, torch.nan), where, 2)
    assert found[0, 0].tolist() == pytest.approx([2.0, 2.0, 2.0, 20.0, 20.0])
    where[0, 0, 2] = True  # nor do points of a cell that are not there
    found = smoothed(values, where, 2)
    assert found[0, 1, 2] == pytest.approx(0.25 * 2 + 0.75 * 5)
    assert torch.equal(smoothed(values, where, 1), values)


def test_smoothing_acts_along_both_axes_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 11, 18, generator=generator, dtype=torch.float64)
    where = torch.rand(2, 11, 18, generator=generator) > 0.2
    assert torch.allclose(smoothed(values, where, 4).mT, smoothed(values.mT, where.mT, 4))
    constant = smoothed(torch.full_like(values, 3.0), where, 4)
    assert torch.allclose(constant[where], torch.tensor(3.0).double())


def test_models_with_tokens_maps_of_patches_and_maps_of_points_agree() -> None:
    """The same numbers in three forms; a finer map is averaged over the patch."""
    samples = make_samples(4)

    def points(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        return torch.cat((x, x.square()), dim=1)

    def patches(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        cells = [
            [
                points(x, None, None)[..., j : j + 4, i : i + 4].mean((-2, -1))
                for i in range(0, 22, 4)
            ]
            for j in range(0, 14, 4)
        ]
        return torch.stack([torch.stack(row, dim=-1) for row in cells], dim=-2)

    of_points = alignment(points, samples, patch=4)
    of_patches = alignment(patches, samples)
    of_tokens = alignment(lambda x, p, m: patches(x, p, m).flatten(2).mT, samples, patch=4)
    assert of_points == pytest.approx(of_patches) and of_patches == pytest.approx(of_tokens)
    assert alignment(points, samples) != pytest.approx(of_points)  # every point by itself


def test_pibert_is_judged_by_the_tokens_of_its_patches() -> None:
    model = randomise(tiny_model(spec=SPEC, dropout=0.5)).double().train()
    samples = make_samples(4)
    found = alignment(model, samples)
    assert all(math.isfinite(value) and value < 1 for value in found.values())
    assert found == pytest.approx(alignment(model, samples)) and model.training
    by_hand = alignment(lambda x, p, m: model.eval().encode(x, p, m)[:, :24], samples, patch=4)
    assert found == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("name", "width"), [("fno2d", 24), ("unet", 16), ("fourierflow", 32), ("pitt", 16)]
)
def test_models_of_points_and_of_patches_are_judged_on_one_lattice(name: str, width: int) -> None:
    model = randomise(tiny_model(name, SPEC)).double()
    samples = make_samples(4)

    def by_hand(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        found = model.eval().embed(x, parameters, mask)
        assert found is not None and found.shape[1] == width
        if found.shape[-2:] == (4, 6):
            return found.flatten(2).mT
        assert found.shape[-2:] == SHAPE
        rows, columns = range(0, 14, 4), range(0, 22, 4)
        cells = [found[..., j : j + 4, i : i + 4].mean((-2, -1)) for j in rows for i in columns]
        return torch.stack(cells, dim=1)

    assert alignment(model, samples, patch=4) == pytest.approx(alignment(by_hand, samples, patch=4))


def test_the_raw_input_is_the_velocity_of_the_newest_frame_where_it_is_known() -> None:
    samples = make_samples(8, gaps=0.0, history=2)
    batch = samples.batch([0, 5])
    newest = torch.where(batch.mask[:, None], batch.x[:, 2:], 0.0)
    points = raw_input(SPEC)(batch.x, None, batch.mask)
    assert torch.equal(points, newest)
    patches = raw_input(SPEC, 4)(batch.x, None, batch.mask)
    assert patches.shape == (2, 32, 4, 6)
    assert torch.equal(patches[1, :, 1, 2], newest[1, :, 4:8, 8:12].flatten())
    # A mean tells nothing of the differences that all values of the patch tell.
    known = alignment(raw_input(SPEC, 4), samples, patch=4, scales=(1,))[1]
    assert known > 0.8 > 0.5 > alignment(raw_input(SPEC), samples, patch=4, scales=(1,))[1]


def test_the_strength_is_chosen_by_the_fitted_trajectories_alone() -> None:
    """More features than there are tokens: without a ridge the fit is of the noise.

    A fit that is chosen well does not fall behind one with the weakest ridge, and the vorticity
    of the trajectories that are judged has no say in the choice.
    """
    samples = make_samples(8, frames=3)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(len(samples), 24, 300, generator=generator, dtype=torch.float64)
    whole = samples.batch(range(len(samples)))
    numbers = {x.numpy().tobytes(): n for n, x in enumerate(whole.x)}

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        return noise[[numbers[row.numpy().tobytes()] for row in x]]

    weak = alignment(embed, samples, patch=4, alpha=1e-3)
    strong = alignment(embed, samples, patch=4, alpha=1e3)
    assert strong[1] > weak[1] + 0.5
    assert alignment(embed, samples, patch=4) == pytest.approx(strong)


def test_the_order_and_size_of_batches_do_not_matter() -> None:
    samples = make_samples(4)

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        return patch_values(x)

    whole = alignment(embed, samples, patch=4)
    assert alignment(embed, samples, patch=4, batch_size=3) == pytest.approx(whole)
    order = [s for start in range(4) for s in range(start, len(samples), 4)]
    pairs = [(samples.batch([s]), torch.tensor([samples.locate(s)[0] + 50])) for s in sorted(order)]
    again = alignment_of_batches(embed, pairs, spec=SPEC, normalizer=NORMALIZER, patch=4)
    assert again == pytest.approx(whole)


def test_what_cannot_be_judged_is_refused() -> None:
    samples = make_samples(2)
    with pytest.raises(ValueError, match="4 x 6 tokens"):
        alignment(lambda x, p, m: patch_values(x)[:, :20], samples, patch=4)
    with pytest.raises(ValueError, match="give patch="):
        alignment(lambda x, p, m: patch_values(x), samples)
    with pytest.raises(ValueError, match="DeepONet2d, whose embed gives none"):
        alignment(tiny_model("deeponet2d", SPEC).double(), samples)
    with pytest.raises(ValueError, match="divides"):
        alignment(lambda x, p, m: x[..., :3, :3], samples)
    with pytest.raises(ValueError, match="finite"):
        alignment(lambda x, p, m: x * torch.nan, samples)
    with pytest.raises(ValueError, match="scales"):
        alignment(lambda x, p, m: x, samples, scales=())
    one = [(samples.batch([0]), torch.tensor([0]))]
    with pytest.raises(ValueError, match="both folds"):
        alignment_of_batches(lambda x, p, m: x, one, spec=SPEC, normalizer=NORMALIZER)
    heat = FieldSpec(channels=("T",), family="heat", grid=Grid(SHAPE))
    with pytest.raises(ValueError, match="velocity"):
        alignment_of_batches(lambda x, p, m: x, one, spec=heat, normalizer=Normalizer.identity(1))
