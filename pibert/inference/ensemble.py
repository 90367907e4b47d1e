"""Deep ensembles: the same experiment trained with several seeds, used like one ``Predictor``."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pibert.fields import FieldSpec
from pibert.inference.predictor import Predictor


class Ensemble(Predictor):
    """Several predictors of the same fields, as one.

    Each member rolls out by itself. The prediction is the mean over the members, the spread their
    standard deviation. Attention and gates of ``explain`` are those of the first member.

    Args:
        members: Two or more, with the same channels, grid, scaling and window.
    """

    def __init__(self, members: Sequence[Predictor]) -> None:
        if len(members) < 2:
            raise ValueError(f"expected two or more members, found {len(members)}")
        first = members[0]
        super().__init__(first.model, first.normalizer, card=first.card, chunk=first.chunk)
        self.members = tuple(members)
        self.models = tuple(member.model for member in members)
        for number, other in enumerate(self.members[1:], 2):
            for what in ("history", "horizon", "normalizer"):
                mine, theirs = getattr(first, what), getattr(other, what)
                if mine != theirs:
                    raise ValueError(
                        f"expected members of one experiment, found {what} {mine} of the first and "
                        f"{theirs} of member {number}; run it again with another seed alone"
                    )
            if _without_ranges(first.spec) != _without_ranges(other.spec):
                raise ValueError(
                    f"expected members of one experiment, found other fields in member {number}; "
                    "run it again with another seed alone"
                )
        if len({member.weights_sha256 for member in self.members}) < len(self.members):
            raise ValueError("expected members that differ, found the same weights twice")

    def __repr__(self) -> str:
        return f"Ensemble({len(self.members)} members, the first {self.members[0]!r})"

    @property
    def weights_sha256(self) -> str:
        """Fingerprint of the weights of all members, in any order."""
        each = sorted(member.weights_sha256 for member in self.members)
        return hashlib.sha256(" ".join(each).encode()).hexdigest()

    def require_head(self, head: str) -> None:
        """Raise unless all members have this head, trained."""
        for member in self.members:
            member.require_head(head)


def _without_ranges(spec: FieldSpec) -> dict[str, Any]:
    """A spec as plain JSON without the parameter ranges, which older files lack."""
    parameters = tuple(
        replace(parameter, lowest=None, highest=None) for parameter in spec.parameters
    )
    return replace(spec, parameters=parameters).to_dict()
