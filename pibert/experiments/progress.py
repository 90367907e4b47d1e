"""How far a run has come, by its folder."""

from pathlib import Path

from pibert.experiments.record import read_record
from pibert.training.journal import FILE, read_log


def unfinished(folder: Path) -> str | None:
    """A remark on a run that was stopped, or is under way; None where there is nothing to say."""
    if not all((folder / name).is_file() for name in ("config.json", FILE)):
        return None  # no run, or one of a model that is found in closed form
    schedule = read_record(folder / "config.json").get("schedule") or {}
    lines = [line for line in read_log(folder / FILE) if line.get("kind") == "epoch"]
    if not lines or "epochs" not in schedule:
        return None
    done, best = lines[-1]["epoch"], lines[-1].get("best_epoch") or 0
    patience = schedule.get("patience")
    if patience is not None and any(line.get("valid") for line in lines):
        validated = done - done % (schedule.get("validate_every") or 1)
        if validated - best >= patience:
            return None
    if done >= schedule["epochs"]:
        return None
    return (
        f"{folder}: this run is not finished, epoch {done} of {schedule['epochs']}; these are its "
        f"best weights so far; go on with: pibert resume {folder}"
    )
