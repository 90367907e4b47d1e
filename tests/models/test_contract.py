"""The contract of every model in the table."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pibert.fields import Normalizer
from pibert.models import MODELS, PRESETS, build_model, count_parameters, make_config
from pibert.models.references.simple import Reference
from pibert.training.optimizers import LEAST_SIDE, matrices_of
from tests.helpers import TINY_OPTIONS, assert_close, randomise, refused, tiny_model, tiny_spec
from tests.models.recordings import batches_of

SHAPE = (12, 16)
_missing = pytest.mark.skipif(
    importlib.util.find_spec("neuralop") is None, reason="neuraloperator is not installed"
)


def _is_reference(name: str) -> bool:
    kind = MODELS[name]
    return isinstance(kind, type) and issubclass(kind, Reference)


def _params(names: list[str]) -> list[Any]:
    return [pytest.param(n, marks=[_missing] if n == "neuraloperator" else []) for n in names]


ALL = _params(list(MODELS))
TRAINED = _params([name for name in MODELS if not _is_reference(name)])
# FourierFlow predicts the mean of its samples, which a loss on the output does not train: its
# objective is tested in tests/training.
REGRESSORS = _params([n for n in MODELS if not _is_reference(n) and n != "fourierflow"])


def make(name: str, **options: Any) -> Any:
    """A model that can predict: with random weights, or fitted on random frames."""
    model = tiny_model(name, tiny_spec(SHAPE), **options)
    if not _is_reference(name):
        return randomise(model).eval()
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(40, 2, *SHAPE, generator=generator)
    normalizer = Normalizer((0.2, -0.1), (1.1, 0.9))
    batches = batches_of(states, model.spec, normalizer, history=model.config.history)
    model.fit(batches, normalizer)
    return model


def fields(model: Any, b: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, model.in_channels, *SHAPE, generator=generator)


SIZES = {
    "pibert": {"base": 1_560_232, "large": 8_714_248},
    "pibert-mr": {"base": 1_551_045, "small": 272_453, "large": 4_986_405},
    "fno2d": {"base": 1_054_082, "modes12": 2_368_162, "modes16": 4_203_170},
    "deeponet2d": {"base": 150_674, "rank64": 151_122, "wide": 618_786},
    "pitt": {"base": 216_914},
    "pitt-constant": {"base": 216_914},
    "fourierflow": {"base": 2_770_309},
    "fourierflow-det": {"base": 2_716_291},
    "pinn": {"base": 21_250},
    "unet": {
        "base": 1_685_810,
        "wide": 6_596_194,
        "small": 545_600,
        "flops-1.8g": 8_327_630,
        "flops-4.3g": 20_007_850,
        "flops-4.3g-5m": 5_114_401,
    },
    "transolver": {"base": 1_552_418, "small": 296_830},
    "mwt": {"base": 1_545_494, "small": 326_636},
    "mwt-published": {"base": 1_447_190, "published": 9_808_066},
    "pde-transformer": {"base": 1_507_168, "small": 260_068, "published-s": 32_106_632},
    "flowers": {"base": 1_564_346, "published": 17_328_402},
}
"""Parameters of every preset, for two channels in and out on 64 x 64 points; the default first."""
EMBEDDINGS = ("positions", "positions.table", "embedding.weight")
"""Ends of the names of learned positions and words, which Muon leaves to AdamW."""


def test_every_model_has_presets_and_tiny_options() -> None:
    assert list(MODELS) == list(PRESETS)
    assert set(MODELS) == set(TINY_OPTIONS)
    assert all(PRESETS.values())
    assert set(SIZES) == {n for n in MODELS if not _is_reference(n)} - {"neuraloperator"}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_stated_number_of_parameters(name: str) -> None:
    found = {preset: count_parameters(build_model(name, preset=preset)) for preset in PRESETS[name]}
    assert list(found.items()) == list(SIZES[name].items())


@pytest.mark.parametrize("name", TRAINED)
def test_muon_takes_all_matrices_but_embeddings(name: str) -> None:
    """All that are not small: what AdamW trains at Muon's rate would be a handicap of the model."""
    model = build_model(name)
    of_modes = {
        id(getattr(module, weight))
        for module in model.modules()
        for weight in getattr(module, "spectral_weights", ())
    }

    def shortest(p: Tensor) -> int:
        """Side of the matrix, or of that of each Fourier mode as a real one."""
        return 2 * min(p.shape[-3:-1]) if id(p) in of_modes else min(p.flatten(1).shape)

    matrices = {
        key: p
        for key, p in model.named_parameters()
        # Complex: the Fourier layers of neuraloperator.
        if p.requires_grad and p.ndim >= 2 and not p.is_complex() and shortest(p) >= LEAST_SIDE
    }
    taken = {id(p) for part in matrices_of(model) for p in part}
    left = {key: p.numel() for key, p in matrices.items() if id(p) not in taken}
    assert not [key for key in left if not key.endswith(EMBEDDINGS)]
    assert sum(left.values()) < 0.05 * sum(p.numel() for p in matrices.values())


WRONG: dict[str, dict[str, Any]] = {
    "pibert-mr": {"cycles": 0, "fourier_modes": -1, "attention_bias": -0.5, "dmd_modes": 8.5},
    "fno2d": {"modes": 0, "padding": -1},
    "deeponet2d": {"rank": 0, "channels": ()},
    "pitt": {"updates": -1, "heads": 5, "base_depth": 0},
    "fourierflow": {"align_at": 40, "align": -1.0, "draws": 0, "blocks": 3},
    "pinn": {"pde_weight": -1.0, "depth": 0},
    "unet": {"width": 0, "history": 0, "stages": 17, "dmd_modes": "8"},
    "transolver": {"heads": 3, "slices": 0},
    "mwt": {"order": 11},
    "mwt-published": {"modes": 0, "order": 11},
    "pde-transformer": {"depths": (1, 1), "heads": 5, "window": 0},
    "flowers": {"heads": 7, "levels": 0},
}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, *wrong) for name, options in WRONG.items() for wrong in options.items()],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_a_wrong_option_is_named_with_its_value(name: str, option: str, value: Any) -> None:
    with refused(option, value):
        make_config(name, **{option: value})


@pytest.mark.parametrize("name", ALL)
def test_wrong_input_is_refused_with_what_was_expected_and_found(
    name: str, no_shape_checks: None
) -> None:
    model = make(name)
    x = fields(model)
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((x.numpy(),), "fields as a tensor, found ndarray; .*from_numpy.*Predictor"),
        ((None,), "fields as a tensor, found NoneType"),
        ((x, {"Re": 100.0}), "parameters as a tensor, found dict"),
        ((x, None, np.ones(SHAPE, dtype=bool)), "mask as a tensor, found ndarray"),
        ((x[0],), r"\(b, \d+, y, x\), found \(\d+, 12, 16\); .*x\[None\]"),
        ((x.unflatten(1, (-1, 2)),), r"found \(3, \d+, 2, 12, 16\); .*fold the frames"),
        ((x[:, :1],), r"found \(3, 1, 12, 16\); .* x \['u', 'v'\], .*pass the channels"),
    ]
    if list(model.parameters()):
        cases += [
            (
                (x.double(),),
                r"fields in torch.float32.* found torch.float64; .*x.to\(torch.float32",
            ),
            ((x.int(),), "fields in torch.float32.* found torch.int32"),
        ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            model(*arguments)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("frames", [(1, 1), (3, 2)])
def test_an_untrained_model_is_persistence_exactly(name: str, frames: tuple[int, int]) -> None:
    model = tiny_model(name, tiny_spec(SHAPE), history=frames[0], horizon=frames[1])
    assert model.config.residual
    x = fields(model)
    assert torch.equal(model(x, torch.randn(3, 1)), x[:, -2:].repeat(1, frames[1], 1, 1))


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_in_use_gets_a_finite_gradient_that_is_not_zero(name: str) -> None:
    model = make(name).train()
    model(fields(model), torch.randn(3, 1)).square().mean().backward()
    # Heads of other tasks and frozen modules do not contribute to a prediction.
    used = {n: p.grad for n, p in model.named_parameters() if "_head" not in n and p.requires_grad}
    assert used
    for key, gradient in used.items():
        assert gradient is not None, key
        assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0, key


@pytest.mark.parametrize("name", TRAINED)
def test_frames_fold_into_channels_on_any_grid_in_double_precision(name: str) -> None:
    spec = tiny_spec((13, 22), channels=("u", "v", "p"), units=())
    model = randomise(tiny_model(name, spec, history=2, horizon=2).double()).eval()
    for shape in ((13, 22), (16, 12), (9, 33))[: 1 if name == "deeponet2d" else 3]:
        y = model(torch.randn(2, 6, *shape, dtype=torch.float64))
        assert y.shape == (2, 6, *shape) and y.dtype == torch.float64 and y.isfinite().all()
    assert model(torch.randn(0, 6, 13, 22, dtype=torch.float64)).shape == (0, 6, 13, 22)


@pytest.mark.parametrize(
    "name", [p for p in TRAINED if hasattr(next(iter(PRESETS[p.values[0]].values())), "parameters")]
)
def test_parameters_are_optional_inputs_and_unknown_ones_are_zero(name: str) -> None:
    known = torch.tensor([[0.4], [-1.0], [2.0]])
    without, using = make(name), make(name, parameters=True)
    x = fields(without)
    if not name.startswith("pitt"):  # its text contains them
        assert torch.equal(without(x, known), without(x))
        assert torch.equal(using(x), using(x, torch.full_like(known, torch.nan)))
    assert not torch.allclose(using(x, known), using(x), atol=1e-6)


@pytest.mark.parametrize("name", ["pibert", "pibert-mr"])
def test_the_embedding_is_a_map_of_points_or_patches(name: str) -> None:
    model = make(name)
    x, mask = fields(model), torch.ones(3, *SHAPE, dtype=torch.bool)
    mask[1, 2:9, 3:11] = False
    parameters = torch.tensor([[0.3], [-1.2], [float("nan")]])
    with torch.no_grad():
        found = model.embed(x, parameters, mask)
    assert found.shape[0] == 3 and tuple(found.shape[-2:]) in (SHAPE, (3, 4))
    assert torch.isfinite(found).all()
    with torch.no_grad():
        # It depends on the sample alone, not on unknown points, and locally on the field.
        alone = model.embed(x[1:2], parameters[1:2], mask[1:2])
        hidden = model.embed(torch.where(mask[:, None], x, 7.0), parameters, mask)
        moved = x.clone()
        moved[:, :, 10, 14] += 1.0
        other = model.embed(moved, parameters, mask)
    assert_close(alone, found[1:2])
    assert torch.equal(hidden, found)
    size = SHAPE[0] // found.shape[-2]
    assert (other - found)[..., 10 // size, 14 // size].abs().max() > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_samples_do_not_leak_into_each_other(name: str) -> None:
    model = make(name)
    x, parameters = fields(model, 4), torch.randn(4, 1)
    alone = torch.cat([model(x[i : i + 1], parameters[i : i + 1]) for i in range(4)])
    assert_close(model(x, parameters), alone)
    x.requires_grad_()
    answer = model(x, parameters)
    if name == "training-mean":  # does not depend on the input
        assert not answer.requires_grad
        return
    answer[1].sum().backward()
    assert x.grad is not None
    assert not x.grad[[0, 2, 3]].any() and x.grad[1].any()


@pytest.mark.parametrize("name", TRAINED)
def test_distant_points_matter_to_all_but_a_pointwise_model(name: str) -> None:
    model = make(name)
    x = fields(model, 1).requires_grad_()
    model(x)[0, :, 0, 0].sum().backward()
    assert x.grad is not None and x.grad[0, :, 0, 0].all()
    assert bool(x.grad[0, :, -1, -1].all()) is (name != "pinn")
    if name == "pinn":
        assert not x.grad[0, :, 1:].any() and not x.grad[0, :, :, 1:].any()


@pytest.mark.parametrize("name", ALL)
def test_saving_and_loading_gives_the_identical_function(name: str, tmp_path: Path) -> None:
    model = make(name)
    x = fields(model, 2)
    if hasattr(model, "calibrate"):
        model.calibrate(x)
    if hasattr(model, "set_increment_scale"):
        model.set_increment_scale(torch.tensor([0.3, 0.7]))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = tiny_model(name, tiny_spec(SHAPE)).eval()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(x), other(x))


def _target(name: str, x: Tensor) -> Tensor:
    """A target that the model must be able to fit: noise, or what it can represent."""
    if name == "pinn":  # a function of each point
        return torch.stack((x[:, 0] - x[:, 1] ** 2, torch.sin(2 * x[:, 0])), dim=1)
    if name == "deeponet2d":  # few smooth fields, and the skip connection
        rows, columns = (torch.linspace(0, torch.pi, n) for n in x.shape[-2:])
        waves = torch.cos(rows)[:, None] * torch.cos(2 * columns)
        return x + torch.tensor([[1.0, -2.0], [2.0, 0.5]])[:, :, None, None] * waves
    return fields_like(x)


def fields_like(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("name", REGRESSORS)
def test_the_model_overfits_one_tiny_batch(name: str, no_shape_checks: None) -> None:
    torch.manual_seed(0)
    model = tiny_model(name, tiny_spec(SHAPE))
    x = fields(model, 2)
    y = _target(name, x)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    enough = 0.05 * (x - y).square().mean()
    for _ in range(500):  # most need less than 100
        optimiser.zero_grad()
        loss = (model(x) - y).square().mean()
        if loss < enough:
            return
        loss.backward()
        optimiser.step()
    pytest.fail(f"the loss is still {loss:.3f}, expected less than {enough:.3f}")


@pytest.mark.parametrize("name", ALL)
def test_the_model_runs_in_half_precision_autocast(name: str) -> None:
    model = make(name)
    x = fields(model, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    with torch.no_grad():
        full = model(x)
    assert full.shape == (2, 2, *SHAPE) and full.isfinite().all()
    assert (half - full).norm() < 2e-2 * full.norm()
