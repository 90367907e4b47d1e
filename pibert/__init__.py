"""PIBERT: a physics-informed Fourier-wavelet transformer that steps flow fields forward in time."""

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
from pibert.models import MODELS, PRESETS, build_model, count_parameters
from pibert.predictor import Predictor, load

__version__ = "0.1.0"

__all__ = [
    "MODELS",
    "PARAMETER_WIDTH",
    "PRESETS",
    "Batch",
    "Boundary",
    "FieldSpec",
    "Grid",
    "Normalizer",
    "Parameter",
    "Predictor",
    "Sides",
    "Trajectory",
    "__version__",
    "build_model",
    "count_parameters",
    "load",
]
