"""Words that the shell offers after Tab, beyond the names of commands and options."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def complete_model(incomplete: str) -> list[str]:
    """Shipped models, and what lies at the path begun so far."""
    from pibert.inference import shipped_models

    folder, _, begun = incomplete.rpartition("/")
    folder = f"{folder}/" if "/" in incomplete else ""
    place = Path(folder or ".")
    there = sorted(place.iterdir()) if place.is_dir() else []
    shown = (path for path in there if begun.startswith(".") or not path.name.startswith("."))
    paths = [f"{folder}{path.name}{'/' if path.is_dir() else ''}" for path in shown]
    return _begun([*shipped_models(), *paths], incomplete)


def complete_case(incomplete: str) -> list[str]:
    from pibert.solver.presets import PRESETS

    return _begun(PRESETS, incomplete)


def complete_case_preset(ctx: Any, incomplete: str) -> list[str]:
    from pibert.solver.presets import PRESETS

    case = ctx.params.get("case")
    choices = PRESETS.get(case, {}) if case else {n for own in PRESETS.values() for n in own}
    return _begun(sorted(choices), incomplete)


def complete_comparison(incomplete: str) -> list[str]:
    from pibert.comparison.presets import PRESETS

    return _begun(PRESETS, incomplete)


def complete_candidates(ctx: Any, incomplete: str) -> list[str]:
    """The last name of a list with commas."""
    from pibert.comparison.presets import PRESETS

    plan = PRESETS.get(ctx.params.get("preset") or "demo", PRESETS["demo"])
    named = incomplete.split(",")[:-1]
    before = "".join(f"{name}," for name in named)
    return _begun([before + name for name in plan.candidates if name not in named], incomplete)


def _begun(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
