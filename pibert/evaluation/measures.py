"""The list of metrics: which of them a field supports.

Run on frames in physical units they give physical numbers. For standardised numbers beside them
``standardised_measures`` has those that keep a meaning without units: not derivatives, spectra or
momentum, which are meaningless if u and v have different scales.
"""

from dataclasses import replace

from torch import Tensor

from pibert.evaluation.measure import Measure
from pibert.evaluation.official import Official
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

SHORTEST = 20
"""Frames without a gap below which nothing is said of the behaviour in time, and the windows that
RealPDEBench's metrics are of; here their frames are predicted one by one."""
PHYSICAL, STANDARDISED = "physical", "standardised"


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
        normalizer: Of the training set.
        has_body: Whether there is a body.
        length_unit: Of the grid's spacing.
        mean: The mean window of the truth, which RealPDEBench's R2 needs to make its terms; to make
            values of them it is not needed.
    """
    physical = frame_measures(spec, normalizer, has_body=has_body, length_unit=length_unit)
    if spec.velocity is not None:
        official = Official(spec=spec, frames=SHORTEST, mean=mean)
        physical = (*physical, Temporal(spec=spec), official)
    return {PHYSICAL: physical, STANDARDISED: standardised_measures(spec, has_body=has_body)}


def frame_measures(
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    has_body: bool | None = None,
    length_unit: str | None = None,
) -> tuple[Measure, ...]:
    """The measures of frames in physical units, each with a name of its own.

    Args:
        spec: Of the predicted fields.
        normalizer: Of the training set: gives sums a fixed centre, and scales channels of different
            units where they count together.
        has_body: Whether there is a body, at rest or not; None: what the grid says, which has only
            one at rest.
        length_unit: Of the grid's spacing; None: the one that fits the velocity.
    """
    if has_body is None:
        has_body = spec.grid.body is not None
    measures = _plain(spec, normalizer, has_body)
    if spec.velocity is None:
        return measures
    flow: list[Measure] = [VelocityGradients(spec=spec, length_unit=length_unit)]
    if supports_spectra(spec.grid):
        flow.append(Spectra(spec=spec))
    if has_body:
        flow.append(WakeLine(spec=spec))
    return (*measures, *flow)


def standardised_measures(spec: FieldSpec, *, has_body: bool | None = None) -> tuple[Measure, ...]:
    """The measures of standardised frames, under the names that they have in physical units."""
    if has_body is None:
        has_body = spec.grid.body is not None
    return _plain(replace(spec, units=()), Normalizer.identity(len(spec.channels)), has_body)


def _plain(spec: FieldSpec, normalizer: Normalizer, has_body: bool) -> tuple[Measure, ...]:
    """What makes sense of any channels on any scales."""
    found: list[Measure] = [
        Pointwise(spec=spec, normalizer=normalizer),
        PooledScales(spec=spec, normalizer=normalizer),
    ]
    if min(spec.grid.shape) >= SMALLEST:
        found.append(HaarBands(spec=spec))
    if has_body or not (spec.grid.periodic_x and spec.grid.periodic_y):
        found.append(BoundaryError(spec=spec, normalizer=normalizer))
    if has_body:
        found.append(NearBodyError(spec=spec, normalizer=normalizer))
    return (*found, Slices(spec=spec, has_body=has_body))
