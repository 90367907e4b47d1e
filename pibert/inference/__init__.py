"""Inference: trained models, predictions in physical units, and their prediction intervals."""

from pibert.inference.calibrated import CalibratedPredictor, load_calibrated
from pibert.inference.calibration import Calibration, CalibrationSettings, calibrate
from pibert.inference.calibration_file import save_calibration
from pibert.inference.ensemble import Ensemble
from pibert.inference.explanation import Explanation
from pibert.inference.model_file import SavedModel, read_model, save_model, shipped_models
from pibert.inference.ood import OODResult
from pibert.inference.predictor import Predictor, load
from pibert.inference.stream import Prediction, PredictionIntervals, RolloutDiverged
from pibert.notes import InputWarning, Note

__all__ = [
    "CalibratedPredictor",
    "Calibration",
    "CalibrationSettings",
    "Ensemble",
    "Explanation",
    "InputWarning",
    "Note",
    "OODResult",
    "Prediction",
    "PredictionIntervals",
    "Predictor",
    "RolloutDiverged",
    "SavedModel",
    "calibrate",
    "load",
    "load_calibrated",
    "read_model",
    "save_calibration",
    "save_model",
    "shipped_models",
]
