"""PIBERT: a physics-informed Fourier-wavelet transformer that steps flow fields forward in time."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 (a checkout can be run with any Python)
    raise ImportError(
        f"PIBERT needs Python 3.11 or newer, found {sys.version_info[0]}.{sys.version_info[1]}; "
        "install it for a newer Python"
    )

if TYPE_CHECKING:
    from pibert.api.fitting import compare, fit
    from pibert.api.flows import Flow, flow, read
    from pibert.api.model import Model, load
    from pibert.fields import (
        PARAMETER_WIDTH,
        Batch,
        Boundary,
        FieldSpec,
        Grid,
        Normalizer,
        Parameter,
        Sides,
        Trajectory,
    )
    from pibert.inference import Predictor
    from pibert.models import MODELS, PRESETS, build_model, count_parameters

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("MODELS", "PRESETS", "build_model", "count_parameters"), "pibert.models"),
    **dict.fromkeys(("compare", "fit"), "pibert.api.fitting"),
    **dict.fromkeys(("Flow", "flow", "read"), "pibert.api.flows"),
    **dict.fromkeys(("Model", "load"), "pibert.api.model"),
    "Predictor": "pibert.inference",
}
"""Modules of the names in ``__all__`` that are not from ``pibert.fields``."""

__all__ = [
    "MODELS",
    "PARAMETER_WIDTH",
    "PRESETS",
    "Batch",
    "Boundary",
    "FieldSpec",
    "Flow",
    "Grid",
    "Model",
    "Normalizer",
    "Parameter",
    "Predictor",
    "Sides",
    "Trajectory",
    "__version__",
    "build_model",
    "compare",
    "count_parameters",
    "fit",
    "flow",
    "load",
    "read",
]


def __getattr__(name: str) -> Any:
    """Import names and modules on first use, so that the command line starts without torch."""
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "pibert.fields")), name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
