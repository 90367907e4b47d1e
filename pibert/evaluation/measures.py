"""The list of metrics: which of them a field supports.

On frames in physical units they give physical numbers. Standardised numbers exist for the metrics
that keep a meaning without units: not derivatives, spectra or momentum, which are meaningless if u
and v have different scales.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.measure import ALL, Entry, Frames, Measure, ratio
from pibert.evaluation.official import SHAPE, Competition, Official
from pibert.evaluation.pointwise import Pointwise
from pibert.evaluation.regions import (
    BoundaryError,
    NearBodyError,
    Slices,
    VelocityGradients,
    WakeLine,
)
from pibert.evaluation.scales import SMALLEST, HaarBands, PooledScales, Spectra, supports_spectra
from pibert.evaluation.temporal import Temporal
from pibert.fields import FieldSpec, Normalizer
from pibert.notes import Note, warn
from pibert.physics import Family, find_family
from pibert.plugins import Table

METRICS: Table[Callable[[FieldSpec, Normalizer], Measure | None]] = Table("pibert.metrics", {})
"""Measures of other packages for fields in physical units; None where they do not apply."""
SHORTEST = 20
"""Frames without a gap below which there are no metrics in time, and the length of the windows of
RealPDEBench's metrics; here their frames are predicted one by one."""
DATA = "data"
"""The component that has the value of the true frames."""
PHYSICAL, STANDARDISED, ROLLOUT = "physical", "standardised", "rollout"


def measures_by_space(
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    has_body: bool,
    length_unit: str | None,
    mean: Tensor | None = None,
) -> dict[str, tuple[Measure, ...]]:
    """The measures of fields, in physical and in standardised units.

    Args:
        spec: Of the predicted fields.
        normalizer: Of the training set: gives sums a fixed centre, and scales channels of different
            units where they count together.
        has_body: Whether there is a body, at rest or moving.
        length_unit: Of the grid's spacing; None: the one that fits the velocity.
        mean: The mean window of the truth, which RealPDEBench's R2 needs for its terms.
    """
    physical = frame_measures(spec, normalizer, has_body=has_body, length_unit=length_unit)
    if spec.velocity is not None:
        physical = (*physical, Temporal(spec=spec))
    if spec.velocity is not None and not spec.state:
        physical = (*physical, Official(spec=spec, frames=SHORTEST, mean=mean))
    physical = (*physical, *_added(spec, normalizer))
    plain, identity = replace(spec, units=()), Normalizer.identity(len(spec.channels))
    return {PHYSICAL: physical, STANDARDISED: _any_fields(plain, identity, has_body)}


def window_measures(spec: FieldSpec, frames: int, mean: Tensor | None = None) -> dict[str, Measure]:
    """The measures of a whole rollout with this number of frames, in physical units, by name.

    Diagnostics of the PDE family, and the metrics of RealPDEBench: as published with 20 frames from
    20, and on the grid of the competition its scores. ``mean`` is as for ``measures_by_space``.
    """
    measures: list[Measure] = []
    if spec.family is not None and find_family(spec.family).diagnostic_names:
        measures.append(FamilyDiagnostics(spec=spec))
    if spec.velocity is not None and not spec.state:
        measures.append(Official(spec=spec, frames=frames, mean=mean))
        if spec.grid.shape == SHAPE:
            measures.append(Competition(spec=spec))
    return {f"{ROLLOUT}/{measure.name}": measure for measure in measures}


@dataclass(frozen=True, eq=False, kw_only=True)
class FamilyDiagnostics(Measure):
    """The diagnostics of a PDE family (``Family.diagnostics``), means over whole rollouts.

    Conservation, positivity, dispersion ...: zero is best, but data on a coarse grid may not be at
    zero themselves, so their values are given too. They need complete fields: a flow with unknown
    points has none.
    """

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


def _added(spec: FieldSpec, normalizer: Normalizer) -> Iterator[Measure]:
    """The measures of other packages; one that fails is left out, with a note."""
    for name, make in METRICS.added().items():
        try:
            measure = make(spec, normalizer)
        except Exception as error:
            text = f"the metric {name!r} of another package is left out: {error!r}"
            warn(Note("plugin", text, subject=name))
        else:
            if measure is not None:
                yield measure


def frame_measures(
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    has_body: bool,
    length_unit: str | None = None,
) -> tuple[Measure, ...]:
    """The measures of single frames in physical units; arguments as for ``measures_by_space``."""
    measures = _any_fields(spec, normalizer, has_body)
    if spec.velocity is None:
        return measures
    flow: list[Measure] = [VelocityGradients(spec=spec, length_unit=length_unit)]
    if supports_spectra(spec.grid):
        flow.append(Spectra(spec=spec))
    if has_body:
        flow.append(WakeLine(spec=spec))
    return (*measures, *flow)


def _any_fields(spec: FieldSpec, normalizer: Normalizer, has_body: bool) -> tuple[Measure, ...]:
    """The measures of any channels on any scales."""
    measures: list[Measure] = [
        Pointwise(spec=spec, normalizer=normalizer),
        PooledScales(spec=spec, normalizer=normalizer),
    ]
    if min(spec.grid.shape) >= SMALLEST:
        measures.append(HaarBands(spec=spec))
    if has_body or not (spec.grid.periodic_x and spec.grid.periodic_y):
        measures.append(BoundaryError(spec=spec, normalizer=normalizer))
    if has_body:
        measures.append(NearBodyError(spec=spec, normalizer=normalizer))
    return (*measures, Slices(spec=spec, has_body=has_body))
