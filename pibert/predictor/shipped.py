"""Models that come with the package, by name, and the device to run one on.

A shipped model is a folder ``pibert/weights/NAME`` with ``model.safetensors``, ``model.json`` and
``README.md``. A path that exists wins over a name.
"""

import difflib
from pathlib import Path

import torch

from pibert.predictor.card import WEIGHTS

FOLDER = Path(__file__).parents[1] / "weights"


def shipped_models() -> dict[str, Path]:
    """Name and folder of every model that comes with the package, in the order of the names."""
    return {weights.parent.name: weights.parent for weights in sorted(FOLDER.glob(f"*/{WEIGHTS}"))}


def find_model(name_or_path: Path | str) -> Path:
    """What lies at a path, or else the shipped model of that name."""
    path, shipped = Path(name_or_path), shipped_models()
    if path.exists():
        return path
    name = str(name_or_path)
    if name in shipped:
        return shipped[name]
    remedy = f"shipped models: {', '.join(shipped) or 'none'}"
    if close := difflib.get_close_matches(name, shipped):
        remedy = f"did you mean {' or '.join(close)}? {remedy}"
    raise FileNotFoundError(
        f"{path}: expected a run folder, a model folder, a .safetensors file or the name of a "
        f"shipped model, found nothing; check the path ({remedy})"
    )


def choose_device(device: torch.device | str) -> torch.device:
    """A device that is there; ``auto``: CUDA, else Apple's MPS, else the CPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next((name for name, here in present.items() if here), "cpu"))
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or not present.get(chosen.type, True):
        here = ", ".join(["cpu", *(name for name, there in present.items() if there)])
        raise ValueError(
            f"expected a device of this machine ({here}) or 'auto', found {str(device)!r}"
        )
    return chosen
