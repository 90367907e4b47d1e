"""Trained models: their files, and predictions with them in physical units."""

from pibert.predictor.explanation import Explanation
from pibert.predictor.model_file import SavedModel, read_model, save_model
from pibert.predictor.prediction import Predictor, load
from pibert.predictor.shipped import shipped_models
from pibert.remarks import InputWarning

__all__ = [
    "Explanation",
    "InputWarning",
    "Predictor",
    "SavedModel",
    "load",
    "read_model",
    "save_model",
    "shipped_models",
]
