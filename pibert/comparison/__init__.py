"""The honest comparison: models under one protocol, judged once on data that decided nothing.

plan.Comparison          entrants, flows, seeds, budget, tuning
  --jobs.carry_out-->    run folders with scores
  --results.gather-->    results.json, results.csv, flows.csv, curves.csv
"""

from pibert.comparison.folder import refuse_other
from pibert.comparison.jobs import Watcher, carry_out
from pibert.comparison.plan import Comparison, Entrant, Job, load_comparison
from pibert.comparison.presets import find_comparison
from pibert.comparison.results import FILES, gather, read_results
from pibert.comparison.trials import Trial
from pibert.comparison.tuning import Tuning

__all__ = [
    "FILES",
    "Comparison",
    "Entrant",
    "Job",
    "Trial",
    "Tuning",
    "Watcher",
    "carry_out",
    "find_comparison",
    "gather",
    "load_comparison",
    "read_results",
    "refuse_other",
]
