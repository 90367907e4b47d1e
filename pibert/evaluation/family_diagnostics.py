"""The diagnostics of a PDE family (``Family.diagnostics``) for whole rollouts, beside the data's.

Conservation, positivity, dispersion ...: zero is best, but data on a coarse grid may not be at
zero themselves. They need complete fields: of a flow with unknown points there are none.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.measure import ALL, Entry, Frames, Measure, ratio
from pibert.physics import Family, find_family

DATA = "data"
"""The component that has the value of the true frames."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FamilyDiagnostics(Measure):
    """Means over rollouts; frames are those of one."""

    name: ClassVar[str] = "family"
    of_sequences: ClassVar[bool] = True

    @property
    def family(self) -> Family:
        assert self.spec.family is not None
        return find_family(self.spec.family)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(
                metric=metric, component=component, better="lower" if component == ALL else "none"
            )
            for metric in self.family.diagnostic_names
            for component in (ALL, DATA)
        )

    def terms(self, frames: Frames) -> Float[Tensor, "1 k"]:
        """For each entry its value, and whether there is one."""
        row: list[float] = []
        found = [self._diagnosed(f, frames) for f in (frames.prediction, frames.truth)]
        for metric in self.family.diagnostic_names:
            for diagnosed in found:
                value = diagnosed.get(metric)
                row += [0.0, 0.0] if value is None else [float(value), 1.0]
        return torch.tensor([row], dtype=torch.float64)

    def _diagnosed(self, fields: Tensor, frames: Frames) -> dict[str, Tensor]:
        if not bool(frames.known.all()):
            return {}
        channels = dict(zip(self.spec.channels, fields.double().unbind(1), strict=True))
        known = {
            name: value
            for name, value in frames.parameters.items()
            if name in self.family.coefficients
        }
        grid, dt = frames.spec.grid, frames.spec.dt
        return self.family.diagnostics(channels, grid, dt=dt, **known)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN where undefined."""
        totals = sums.unflatten(-1, (-1, 2))
        return ratio(totals[..., 0], totals[..., 1])
