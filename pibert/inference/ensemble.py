"""Deep ensembles: the same experiment trained with several seeds, used like one ``Predictor``."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
            mine, theirs = _kind(first), _kind(other)
            if differing := [what for what in mine if mine[what] != theirs[what]]:
                raise ValueError(
                    f"expected members of one experiment, found another {differing[0]} in member "
                    f"{number}; run it again and change only the seed"
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


def _kind(member: Predictor) -> dict[str, Any]:
    """What members have in common; older files lack the ranges of parameters."""
    parameters = tuple(replace(own, lowest=None, highest=None) for own in member.spec.parameters)
    return {
        "history": member.history,
        "horizon": member.horizon,
        "normalizer": member.normalizer,
        "spec": replace(member.spec, parameters=parameters).to_dict(),
    }
