"""Hidden points: shares, shapes, what structured masks follow."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.pretraining.masks import KINDS, Masking, choose
from tests.pretraining.batches import make_batch

SHAPE = (24, 40)
SPEC = FieldSpec(family="incompressible", grid=Grid(SHAPE, dx=0.3, dy=0.2), dt=0.1)
NORMALIZER = Normalizer((0.1, 0.0), (2.0, 0.5))


def noise(b: int, shape: tuple[int, int] = SHAPE) -> Tensor:
    return torch.randn(b, 2, *shape, generator=torch.Generator().manual_seed(0))


def with_a_body_and_gaps() -> Tensor:
    known = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)) > 0.1
    known[5:12, 4:15] = False
    return known


def hide(kind: str, b: int = 2000, mask: Tensor | None = None, **changes: Any) -> Any:
    batch = make_batch(noise(b), mask)
    masking = Masking(kinds=(kind,), block=5, **changes)  # type: ignore[arg-type]
    return choose(batch, masking, SPEC, NORMALIZER)


@pytest.mark.parametrize(
    ("kind", "guide"), [*((kind, "vorticity") for kind in KINDS), ("structured", "residual")]
)
@pytest.mark.parametrize("ratio", [0.15, 0.6])
def test_the_ratio_is_kept_on_average_among_known_points(
    kind: str, ratio: float, guide: str
) -> None:
    known = with_a_body_and_gaps()
    points = hide(kind, mask=known, ratio=ratio, guide=guide).points
    assert not bool((points & ~known).any())
    shares = points.sum((1, 2)) / known.sum()
    error = shares.std() / len(shares) ** 0.5
    assert abs(float(shares.mean()) - ratio) < 4 * float(error) + 1e-6
    # All but independent points keep to it in every draw, but for one group.
    largest = {"pixels": 0.1, "sensors": 40, "regions": 40}.get(kind, 25) / int(known.sum())
    assert float((shares - ratio).abs().max()) <= (0.1 if kind == "pixels" else largest + 1e-6)


def test_blocks_are_squares_that_share_a_lot_and_begin_anywhere() -> None:
    points, lots = hide("blocks", b=400)
    starts_x, starts_y = set(), set()
    for field, lot in zip(points, lots, strict=True):
        for value in lot[field].unique():
            block = field & (lot == value)
            rows, columns = block.any(1).nonzero().flatten(), block.any(0).nonzero().flatten()
            height, width = len(rows), len(columns)
            assert int(block.sum()) == height * width
            assert height == 5 or int(rows[0]) == 0 or int(rows[-1]) == SHAPE[0] - 1
            assert width == 5 or int(columns[0]) == 0 or int(columns[-1]) == SHAPE[1] - 1
            if height == 5 and width == 5:
                starts_y.add(int(rows[0]))
                starts_x.add(int(columns[0]))
    assert starts_y == set(range(SHAPE[0] - 4))
    assert starts_x == set(range(SHAPE[1] - 4))


def test_sensors_fail_by_whole_rows_or_columns() -> None:
    points, lots = hide("sensors", b=200)
    by_row = points.all(2).any(1) & (points.all(2) == points.any(2)).all(1)
    by_column = points.all(1).any(1) & (points.all(1) == points.any(1)).all(1)
    assert bool((by_row ^ by_column).all())
    assert 70 < int(by_row.sum()) < 130
    spread = torch.where(points, lots, 0.0)
    assert bool((spread[by_row].amax(2) == spread[by_row].amin(2)).all())


def test_structured_masks_prefer_vortices_and_reach_every_point() -> None:
    x = torch.zeros(3000, 2, *SHAPE)
    rows, columns = torch.meshgrid(*(torch.arange(n).float() for n in SHAPE), indexing="ij")
    x[:, 1] = torch.exp(-((rows - 12) ** 2 + (columns - 28) ** 2) / 8)
    masking = Masking(kinds=("structured",), block=5)
    share = choose(make_batch(x), masking, SPEC, NORMALIZER).points.float().mean(0)
    assert float(share[12, 28]) > 0.7
    assert 0.01 < float(share[:, :10].mean()) < 0.12
    assert float(share.min()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_of_a_sample_does_not_depend_on_its_batch(kind: str) -> None:
    batch = make_batch(noise(6), with_a_body_and_gaps())
    masking = Masking(kinds=(kind,), block=5)  # type: ignore[arg-type]
    whole = choose(batch, masking, SPEC, NORMALIZER)
    part = batch.map(lambda tensor: tensor[[4, 1]])
    alone = choose(part, masking, SPEC, NORMALIZER)
    assert torch.equal(alone.points, whole.points[[4, 1]])
    assert torch.equal(alone.lots, whole.lots[[4, 1]])
    other = choose(batch.reseeded(0, 1), masking, SPEC, NORMALIZER)
    assert not torch.equal(other.points, whole.points)


def test_a_guide_that_the_fields_do_not_have_is_refused() -> None:
    masking = Masking(kinds=("structured",))
    heat = FieldSpec(channels=("T",), family="heat", grid=SPEC.grid)
    batch = make_batch(noise(2)[:, :1])
    with pytest.raises(ValueError, match="need a velocity"):
        choose(batch, masking, heat, Normalizer.identity(1))
    plain = replace(SPEC, family=None)
    with pytest.raises(ValueError, match="need a PDE family"):
        choose(make_batch(noise(2)), replace(masking, guide="residual"), plain, NORMALIZER)
    with pytest.raises(ValueError, match="block = 30"):
        choose(make_batch(noise(2)), Masking(block=30), SPEC, NORMALIZER)
