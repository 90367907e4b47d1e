"""How far a run has come, by its folder."""

from pathlib import Path
from typing import Any

from pibert.experiments.record import read_record
from pibert.training.journal import FILE, read_log


def unfinished(folder: Path) -> str | None:
    """A remark on a run that was stopped, or is under way; None where there is nothing to say."""
    if not all((folder / name).is_file() for name in ("config.json", FILE)):
        return None  # no run, or one of a model that is found in closed form
    schedule = read_record(folder / "config.json").get("schedule") or {}
    lines = [line for line in read_log(folder / FILE) if line.get("kind") == "epoch"]
    epochs = _count(schedule, "epochs")
    if not lines or epochs is None:
        return None
    done, best = lines[-1]["epoch"], _count(lines[-1], "best_epoch") or 0
    patience = _count(schedule, "patience")
    if patience is not None and any(line.get("valid") for line in lines):
        validated = done - done % (_count(schedule, "validate_every") or 1)
        if validated - best >= patience:
            return None
    if done >= epochs:
        return None
    return (
        f"{folder}: this run is not finished, epoch {done} of {epochs}; these are its best weights "
        f"so far; go on with: pibert resume {folder}"
    )


def _count(table: Any, name: str) -> int | None:
    """A whole number in a table of a file; None where there is none."""
    value = table.get(name) if isinstance(table, dict) else None
    return value if type(value) is int else None
