"""Classic flows, ready to run: one Reynolds number per sample, everything else shared.

Frames come in units of a length D and a speed U, time in D/U; ``cells`` is D in cells and ``speed``
is U in cells per step, both alike for all samples, which differ by their viscosity U D / Re. The
error falls with cells^-2 and with (U / c_s)^2, the square of the Mach number; c_s = 0.577.

Cell centres are the grid points. Walls lie half a cell beyond the outermost centres.
"""

from pibert.solver.cases.boxes import cavity, channel, taylor_green
from pibert.solver.cases.channels import dam, tube
from pibert.solver.cases.wakes import cylinder, tandem

__all__ = ["cavity", "channel", "cylinder", "dam", "tandem", "taylor_green", "tube"]
