"""Trained models: their files, and predictions with them in physical units."""

from pibert.predictor.model_file import SavedModel, read_model, save_model
from pibert.predictor.prediction import Predictor, load

__all__ = ["Predictor", "SavedModel", "load", "read_model", "save_model"]
