"""Error bars whose coverage is measured, and an alarm for inputs unlike the training data."""

from pibert.trust.alarm import Alarm
from pibert.trust.artefact import save_calibration
from pibert.trust.calibration import Calibration, Settings, calibrate
from pibert.trust.ensemble import Ensemble
from pibert.trust.trusted import Bars, Trusted, load

__all__ = [
    "Alarm",
    "Bars",
    "Calibration",
    "Ensemble",
    "Settings",
    "Trusted",
    "calibrate",
    "load",
    "save_calibration",
]
