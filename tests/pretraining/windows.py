"""Small sets of real windows that tests of negatives share."""

from dataclasses import dataclass, replace
from functools import cache

import torch

from pibert.data.dataset import Samples, Window, common_spec
from pibert.data.generate import change
from pibert.data.normalize import fit_normalizer, fit_parameters
from pibert.data.splits import Segment
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter, Trajectory
from pibert.models import build_model
from pibert.models.pibert import PIBERT
from pibert.pretraining.negatives import Negatives, NegativesConfig
from pibert.solver.presets import find_preset
from tests.helpers import TINY, randomise
from tests.physics import exact

CASES = {
    "incompressible": ("turbulence", "demo"),
    "incompressible-momentum": ("turbulence", "demo"),
    "heat": ("heat", "demo"),
    "wave": ("wave", "demo"),
    "wave-first-order": ("wave", "demo"),
    "reaction-diffusion": ("reaction-diffusion", "fisher-kpp"),
    "gray-scott": ("reaction-diffusion", "demo"),
    "euler": ("euler", "demo"),
    "burgers": ("burgers", "demo"),
}
"""A solver preset for every PDE family."""


@dataclass(frozen=True)
class WindowSet:
    """Windows with all that makes negatives of them."""

    samples: Samples
    spec: FieldSpec
    normalizer: Normalizer
    history: int

    def negatives(self, **settings: object) -> Negatives:
        return Negatives(
            NegativesConfig(**settings),  # type: ignore[arg-type]
            self.spec,
            self.normalizer,
            self.history,
            self.samples.parameters,
        )

    def model(self, *, drawn: bool = True, **changes: object) -> PIBERT:
        """A small model; with ``drawn``, of weights that are far from those it would start with."""
        model = build_model(
            "pibert", spec=self.spec, history=self.history, **(TINY | {"dropout": 0.1} | changes)
        )
        if drawn:
            randomise(model)
        model.calibrate(self.samples.batch(range(0, len(self.samples), 5)).x, self.normalizer)
        return model


def make_set(trajectories: list[Trajectory], history: int) -> WindowSet:
    segments = [Segment(index) for index in range(len(trajectories))]
    normalizer = fit_normalizer(trajectories, segments)
    spec = replace(common_spec(trajectories), parameters=fit_parameters(trajectories, segments))
    samples = Samples(
        trajectories,
        segments,
        window=Window(history=history, horizon=1),
        normalizer=normalizer,
        spec=spec,
    )
    return WindowSet(samples, spec, normalizer, history)


@cache
def solver_set(
    family: str, history: int, count: int = 6, frames: int = 8, shape: tuple[int, int] = (24, 32)
) -> WindowSet:
    """Windows of the family's solver."""
    size = {"samples": count, "frames": frames, "shape": list(shape)}
    recipe = change(find_preset(*CASES[family]), size)
    made = [t for t in recipe.simulate(range(count)) if isinstance(t, Trajectory)]
    made = [replace(t, spec=replace(t.spec, family=family)) for t in made]
    if family == "wave":
        made = [
            replace(t, states=t.read()[:, :1], spec=replace(t.spec, channels=("u",), units=()))
            for t in made
        ]
    return make_set(made, history)


@cache
def street_set(history: int = 1, count: int = 8, frames: int = 16) -> WindowSet:
    """Vortex streets of different strength behind a round body, seen through an open window."""
    grid = Grid((24, 40), dx=0.1, dy=0.12)
    x, y = grid.coordinates()
    body = (x - 1.0) ** 2 + (y - 1.4) ** 2 < 0.35**2
    made = []
    for index in range(count):
        strength = 0.8 + 0.15 * index
        time = torch.arange(frames, dtype=torch.float64) * 0.2 + 0.37 * index
        u, v = exact.vortex_street(grid, time, spacing=1.9 + 0.05 * index, circulation=strength)
        made.append(
            Trajectory(
                name=f"street {index}",
                states=torch.stack((u, v), 1).float(),
                time=time - time[0],
                spec=FieldSpec(
                    family="incompressible",
                    grid=replace(grid, body=body),
                    dt=0.2,
                    parameters=(Parameter(name="strength"),),
                    viscosity=0.01,
                ),
                parameters={"strength": strength},
            )
        )
    return make_set(made, history)
