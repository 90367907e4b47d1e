"""Experiments: from a configuration to a finished run folder."""

from pibert.experiments.experiment import Experiment, load_experiment
from pibert.experiments.run import Finished, resume, run

__all__ = ["Experiment", "Finished", "load_experiment", "resume", "run"]
