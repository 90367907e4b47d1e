"""Compare models under one protocol, evaluated once on test data that decided nothing.

plan.Comparison          candidates, flows, seeds, budget, tuning
  --jobs.carry_out-->    run folders with scores
  --results.gather-->    results.json, results.csv, flows.csv, curves.csv
"""

from pibert.comparison.checks import refuse_other
from pibert.comparison.jobs import Watcher, carry_out
from pibert.comparison.plan import Candidate, Comparison, Job, Tuning, load_comparison
from pibert.comparison.presets import find_comparison
from pibert.comparison.results import FILES, gather, read_results
from pibert.comparison.trials import Trial, with_chosen

__all__ = [
    "FILES",
    "Comparison",
    "Candidate",
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
    "with_chosen",
]
