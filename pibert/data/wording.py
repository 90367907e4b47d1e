"""Words of messages."""


def counted(number: int, noun: str) -> str:
    """``1 frame``, ``2 frames``, ``3 trajectories``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
