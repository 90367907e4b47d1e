"""Which channels of a field are a velocity, and whether its divergence is zero."""

from pibert.fields import FieldSpec
from pibert.physics.families import find_family

_UNSTATED = ("u", "v")
"""What counts as the velocity of data of no stated family."""


def velocity_of(spec: FieldSpec) -> tuple[int, int] | None:
    """Indices of the velocity along x and y among the channels; None without a velocity.

    The family decides: some use the names ``u`` and ``v`` for concentrations or displacements.
    """
    names = _UNSTATED if spec.family is None else find_family(spec.family).velocity
    if names is None or not set(names) <= set(spec.channels):
        return None
    return spec.channels.index(names[0]), spec.channels.index(names[1])


def is_solenoidal(spec: FieldSpec) -> bool | None:
    """Whether the divergence of the velocity is zero; None where no family is stated."""
    if velocity_of(spec) is None:
        return False
    return None if spec.family is None else find_family(spec.family).is_solenoidal
