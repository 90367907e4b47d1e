"""The flow solver: batched lattice Boltzmann, many trajectories in one array, CPU and GPU.

case = cases.cylinder([60.0, 100.0, 160.0], perturbation=0.5)
solution = run(case, steps=case.steps(40), every=case.steps(0.5), compiled=True)
solution.fields  # (3, 81, 2, y, x): u and v in units of the stream's speed
"""

from pibert.solver import cases
from pibert.solver.stepping import Case, Solution, Status, run

__all__ = ["Case", "Solution", "Status", "cases", "run"]
