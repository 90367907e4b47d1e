"""DeepONet2d: the sum of products, and the grid."""

from typing import Any

import torch

from pibert.fields import FieldSpec
from pibert.models.baselines.deeponet2d import DeepONet2d, DeepONet2dConfig
from tests.helpers import refused, tiny_spec
from tests.physics.helpers import noise

SMALL: dict[str, Any] = {
    "rank": 3,
    "channels": (4, 5),
    "branch_width": 16,
    "trunk_width": 12,
    "trunk_depth": 2,
}


def make(spec: FieldSpec | None = None, seed: int = 0, **options: Any) -> DeepONet2d:
    """A small model whose coefficients are not zero."""
    torch.manual_seed(seed)
    model = DeepONet2d(DeepONet2dConfig(**(SMALL | options)), spec or tiny_spec((12, 20)))
    torch.nn.init.normal_(model.branch[-1].weight)  # type: ignore[arg-type]
    torch.nn.init.normal_(model.offset)
    return model.double()


def test_the_output_is_a_sum_of_products_and_an_offset() -> None:
    model, x = make(residual=False), noise(2, 2, 12, 20)
    coefficients = model.branch(model.convolutions(x).flatten(1)).view(2, 2, 3)
    for row, column in ((0, 0), (4, 17), (11, 19)):
        point = torch.tensor([2 * (column + 0.5) / 20 - 1, 2 * (row + 0.5) / 12 - 1]).double()
        functions = model.trunk(point).view(2, 3)
        expected = (coefficients * functions).sum(-1) + model.offset
        assert torch.allclose(model(x)[:, :, row, column], expected, atol=1e-6)


def test_other_grids_than_that_of_the_spec_are_refused() -> None:
    # The same number of points and features: no shape is wrong.
    with refused("12 x 20", "20 x 12"):
        make()(noise(1, 2, 20, 12))
