"""The table of models, and functions to build one."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from torch import nn

from pibert.compilation import compile_if_possible
from pibert.fields import FieldSpec
from pibert.models import pibert, pibert_mr
from pibert.models.baselines import (
    deeponet2d,
    flowers,
    fno2d,
    fourierflow,
    mwt,
    neuraloperator,
    pde_transformer,
    pinn,
    pitt,
    transolver,
    unet,
)
from pibert.models.compatibility import current_options
from pibert.models.references import dmd, simple
from pibert.models.stepper import Stepper, StepperConfig
from pibert.plugins import Table

Kind = Callable[[Any, FieldSpec], Stepper]
Presets = Mapping[str, StepperConfig]

_TABLE: dict[str, tuple[Kind, Presets]] = {
    "pibert": (pibert.PIBERT, pibert.PRESETS),
    "pibert-mr": (pibert_mr.PIBERTMR, pibert_mr.PRESETS),
    # The paper's baselines.
    "fno2d": (fno2d.FNO2d, fno2d.PRESETS),
    "deeponet2d": (deeponet2d.DeepONet2d, deeponet2d.PRESETS),
    "pitt": (pitt.PITT, pitt.PRESETS),
    "pitt-constant": (pitt.PITTConstant, pitt.PRESETS),
    "fourierflow": (fourierflow.FourierFlow, fourierflow.PRESETS),
    "fourierflow-det": (fourierflow.FourierFlowDet, fourierflow.DET_PRESETS),
    "pinn": (pinn.PINN, pinn.PRESETS),
    # Modern baselines.
    "unet": (unet.UNet, unet.PRESETS),
    "transolver": (transolver.Transolver, transolver.PRESETS),
    "mwt": (mwt.MWT, mwt.PRESETS),
    "mwt-published": (mwt.MWTPublished, mwt.PUBLISHED_PRESETS),
    "pde-transformer": (pde_transformer.PDETransformer, pde_transformer.PRESETS),
    "flowers": (flowers.Flowers, flowers.PRESETS),
    "neuraloperator": (neuraloperator.NeuralOperator, neuraloperator.PRESETS),
    # Predictors without training.
    "persistence": (simple.Persistence, simple.PRESETS["persistence"]),
    "training-mean": (simple.TrainingMean, simple.PRESETS["training-mean"]),
    "linear-extrapolation": (simple.LinearExtrapolation, simple.PRESETS["linear-extrapolation"]),
    "mean-advection": (simple.MeanAdvection, simple.PRESETS["mean-advection"]),
    "dmd": (dmd.DMD, dmd.PRESETS),
}


def _kind(found: Any) -> Kind:
    return _pair(found)[0]


def _presets(found: Any) -> Presets:
    return _pair(found)[1]


def _pair(found: Any) -> tuple[Kind, Presets]:
    try:
        kind, presets = found
        if not (callable(kind) and presets and isinstance(presets, Mapping)):
            raise TypeError
    except TypeError:
        raise ValueError(
            f"expected a pair of a model class and its configurations by name, found {found!r}"
        ) from None
    return kind, presets


MODELS: dict[str, Kind] = Table(
    "pibert.models", {name: kind for name, (kind, _) in _TABLE.items()}, _kind
)
"""Model classes; each takes its config and a field spec."""
PRESETS: dict[str, Presets] = Table(
    "pibert.models", {name: presets for name, (_, presets) in _TABLE.items()}, _presets
)
"""Named configurations of each model, the default first."""


def build_model(
    name: str, *, preset: str | None = None, spec: FieldSpec | None = None, **overrides: Any
) -> Any:
    """Build a model with fresh weights.

    Args:
        name: A key of ``MODELS``.
        preset: A key of ``PRESETS[name]``; None is the first.
        spec: Channels, grid and parameters. None: the dimensionless velocity (u, v) of an
            incompressible flow on a 64 x 64 unit grid.
        overrides: Fields of the model's config.
    """
    config = make_config(name, preset, **overrides)
    return MODELS[name](config, spec or FieldSpec(family="incompressible"))


def make_config(name: str, preset: str | None = None, **overrides: Any) -> StepperConfig:
    """Return the configuration of a model; arguments as for ``build_model``."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose from: {', '.join(MODELS)}")
    presets = PRESETS[name]
    preset = next(iter(presets)) if preset is None else preset
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r} of {name}; choose from: {', '.join(presets)}")
    known = [field.name for field in fields(presets[preset])]
    overrides = current_options(name, overrides)
    for key in overrides:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"unknown option {key!r} of {name}; {hint}choose from: {', '.join(known)}"
            )
    return replace(presets[preset], **overrides)


def all_inputs(name: str) -> dict[str, bool]:
    """Return the options that give a model all inputs: parameters, coordinates, known points.

    A model of another package keeps its own.
    """
    if name not in _TABLE:
        return {}
    known = {field.name for field in fields(make_config(name))}
    return {option: True for option in ("parameters", "coordinates", "mask") if option in known}


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained parameters; a complex one counts as two."""
    return sum(
        p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad
    )


def compile_model(model: nn.Module) -> Callable[..., Any]:
    """Compile a model as one graph for each input shape; see ``pibert.compilation``."""
    return compile_if_possible(model, fullgraph=True, dynamic=False)
