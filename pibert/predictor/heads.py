"""What a model can do: the heads that it has and that were trained."""

from torch import nn

from pibert.predictor.card import HEADS, Card

_PURPOSES = {
    "forward": ("step", "fine-tune it: pibert train"),
    "reconstruct": ("fill gaps", "train it with masked physics prediction: pibert pretrain"),
    "consistency": (
        "judge consistency",
        "train it with equation consistency prediction: pibert pretrain",
    ),
}
"""What each head is for, and how to come by it."""


def has(model: nn.Module, card: Card, head: str) -> bool:
    """Whether a model has a head that was trained; without a card all of them count as such."""
    trained = card.get("trained", dict.fromkeys(HEADS, True))
    return callable(getattr(model, head, None)) and bool(trained.get(head, False))


def need(model: nn.Module, card: Card, head: str) -> None:
    """Refuse what the model has no head for, or one that has learned nothing."""
    purpose, remedy = _PURPOSES[head]
    if not callable(getattr(model, head, None)):
        raise ValueError(
            f"expected a model that can {purpose}, found {type(model).__name__}, which has no "
            f"{head} head; take another model, such as pibert"
        )
    if not has(model, card, head):
        able = [name for name in HEADS if has(model, card, name)]
        raise ValueError(
            f"expected a model trained to {purpose}, found one whose trained heads are {able}; "
            f"{remedy}"
        )
