"""Training that begins with another model: whose channels, family and scaling it keeps."""

import math
from collections.abc import Iterator
from dataclasses import replace

from pibert.experiments.experiment import Scaling
from pibert.experiments.flows import Flows
from pibert.fields import FieldSpec, Parameter
from pibert.predictor import Predictor
from pibert.remarks import warn

_ALIKE = 1.5
"""Factor between two standard deviations, and number of them between two means, up to which the
scalings count as alike."""
_MARGIN = 0.1
"""Share of a parameter's range by which values may lie beyond it."""
_SAME_STEP = 0.01
"""Relative: grid spacings and time steps that differ by less are the same."""
_REMEDIES = {
    "channels": "choose the same with data.channels",
    "units": "convert the data",
    "parameter_names": "state the same parameters of every flow",
}


def in_units_of(begun: Predictor, flows: Flows, start: str, scaling: Scaling) -> Flows:
    """The flows as a model sees them that is trained further.

    Args:
        begun: The model to begin with.
        flows: In units of their own.
        start: Where the model comes from, for messages.
        scaling: Whose mean and deviation of fields and parameters to use. That of the model is
            kept without a word where it fits the data.
    """
    mine, theirs = flows.spec, begun.spec
    for what, remedy in _REMEDIES.items():
        if getattr(mine, what) != getattr(theirs, what):
            raise ValueError(
                f"{start} was trained on {what.replace('_', ' ')} {getattr(theirs, what)}, but "
                f"these data have {getattr(mine, what)}; {remedy}, or choose another start"
            )
    family = theirs.family or getattr(begun.model.config, "family", None)
    if family is not None and mine.family not in (None, family):
        raise ValueError(
            f"{start} was trained for the family {family!r}, but these data are of "
            f"{mine.family!r}; choose another start, or state data.hints.family"
        )
    if family is not None and mine.family is None:
        warn(
            f"these data state no PDE family; that of {start} is kept, {family!r}, with its "
            "physics terms"
        )
    if changes := list(_other_steps(mine, theirs)):
        warn(f"{start} was trained on another grid spacing or time step: {'; '.join(changes)}")
    # The bias is a part of the model: one that began without a family goes on without.
    flows = replace(flows, spec=replace(mine, family=family))
    if scaling == "data":
        return flows
    if differences := list(_differences(begun, flows)):
        warn(
            f"the scaling of {start} is kept and does not fit these data: "
            f"{'; '.join(differences)}; set start_scaling = 'data' to scale by these data"
        )
    spec = replace(flows.spec, parameters=theirs.parameters)
    return replace(flows, normalizer=begun.normalizer, spec=spec)


def _other_steps(mine: FieldSpec, theirs: FieldSpec) -> Iterator[str]:
    """Steps in space and time that differ from those of the earlier training, with both."""
    steps = {
        "dx": (mine.grid.dx, theirs.grid.dx),
        "dy": (mine.grid.dy, theirs.grid.dy),
        "dt": (mine.dt, theirs.dt),
    }
    for name, (own, known) in steps.items():
        if own is None or known is None:
            if own is not known:
                found = ["not stated" if step is None else f"{step:g}" for step in (own, known)]
                yield f"{name} is {found[0]}, and was {found[1]}"
        elif not math.isclose(own, known, rel_tol=_SAME_STEP):
            yield f"{name} is {own:g}, and was {known:g}"


def _differences(begun: Predictor, flows: Flows) -> Iterator[str]:
    """Channels and parameters whose scaling differs, with both scalings."""
    mine, theirs = flows.normalizer, begun.normalizer
    for place, (name, unit) in enumerate(zip(flows.spec.channels, flows.spec.units, strict=True)):
        mean, std, mean0, std0 = (n[place] for n in (mine.mean, mine.std, theirs.mean, theirs.std))
        factor = max(std / std0, std0 / std)
        if factor > _ALIKE or abs(mean - mean0) > _ALIKE * std0:
            in_unit = "" if unit == "1" else f" {unit}"
            yield (
                f"{name} has mean {mean:.3g} and standard deviation {std:.3g}{in_unit}, scaled by "
                f"{mean0:.3g} and {std0:.3g}"
            )
    for own, known in zip(flows.spec.parameters, begun.spec.parameters, strict=True):
        if _is_beyond(own, known):
            yield (
                f"{own.name} is {own.lowest:g} to {own.highest:g}, and was {known.lowest:g} to "
                f"{known.highest:g} in training"
            )


def _is_beyond(own: Parameter, known: Parameter) -> bool:
    """Whether values of a parameter lie outside those of the earlier training."""
    if None in (own.lowest, own.highest, known.lowest, known.highest):
        return False
    assert own.lowest is not None and own.highest is not None  # for the type checker
    assert known.lowest is not None and known.highest is not None
    slack = _MARGIN * ((known.highest - known.lowest) or abs(known.highest))
    return own.lowest < known.lowest - slack or own.highest > known.highest + slack
