"""Flow solvers. The lattice Boltzmann solver runs many trajectories in one array, on CPU or GPU.

case = wakes.cylinder([60.0, 100.0, 160.0], perturbation=0.5)
solution = run(case, frames=81, every=case.steps(0.5), compiled=True)
solution.fields  # (3, 81, 3, y, x): u, v and pressure in units of the stream's speed
"""

from pibert.solver.stepping import Case, Solution, run

__all__ = ["Case", "Solution", "run"]
