"""All cases that can be generated, with their presets.

``demo`` of every case takes at most about a minute on two cores. The larger presets need a GPU.
"""

from collections.abc import Mapping

from pibert.solver import (
    burgers,
    enclosed,
    euler,
    linear,
    reaction_diffusion,
    turbulence,
    vorticity,
    wakes,
)
from pibert.solver.recipes import Recipe

PRESETS: dict[str, Mapping[str, Recipe]] = {
    "cylinder": wakes.CYLINDER_PRESETS,
    "tandem": wakes.TANDEM_PRESETS,
    "cavity": enclosed.CAVITY_PRESETS,
    "tube": enclosed.TUBE_PRESETS,
    "dam": enclosed.DAM_PRESETS,
    "turbulence": turbulence.PRESETS,
    "kolmogorov": vorticity.KOLMOGOROV_PRESETS,
    "navier-stokes": vorticity.NAVIER_STOKES_PRESETS,
    "heat": linear.HEAT_PRESETS,
    "wave": linear.WAVE_PRESETS,
    "reaction-diffusion": reaction_diffusion.PRESETS,
    "euler": euler.PRESETS,
    "burgers": burgers.PRESETS,
}


def find_preset(case: str, preset: str = "demo") -> Recipe:
    if case not in PRESETS:
        raise ValueError(f"unknown case {case!r}; choose from: {', '.join(PRESETS)}")
    if preset not in PRESETS[case]:
        raise ValueError(
            f"case {case!r} has no preset {preset!r}; choose from: {', '.join(PRESETS[case])}"
        )
    return PRESETS[case][preset]
