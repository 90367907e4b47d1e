"""What is in a data set, and what looks wrong: facts from a bounded sample, then judgements."""

from pibert.data.inspection.checks import Finding, Inspection, inspect
from pibert.data.inspection.survey import Survey

__all__ = ["Finding", "Inspection", "Survey", "inspect"]
