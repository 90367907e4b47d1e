"""Shell completion beyond the names of commands and options."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def complete_model(incomplete: str) -> list[str]:
    """Complete shipped models and paths."""
    from pibert.inference import shipped_models

    folder, slash, start = incomplete.rpartition("/")
    parent = Path(folder + slash or ".")
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    visible = (path for path in entries if start.startswith(".") or path.name[0] != ".")
    paths = [f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in visible]
    return _matching([*shipped_models(), *paths], incomplete)


def complete_case(incomplete: str) -> list[str]:
    from pibert.solver.presets import PRESETS

    return _matching(PRESETS, incomplete)


def complete_case_preset(ctx: Any, incomplete: str) -> list[str]:
    from pibert.solver.presets import PRESETS

    case = ctx.params.get("case")
    names = PRESETS.get(case, {}) if case else {n for presets in PRESETS.values() for n in presets}
    return _matching(sorted(names), incomplete)


def complete_comparison(incomplete: str) -> list[str]:
    from pibert.comparison.presets import PRESETS

    return _matching(PRESETS, incomplete)


def complete_candidates(ctx: Any, incomplete: str) -> list[str]:
    """Complete the last name of a list with commas."""
    from pibert.comparison.presets import PRESETS

    plan = PRESETS.get(ctx.params.get("preset") or "demo", PRESETS["demo"])
    named = incomplete.split(",")[:-1]
    before = "".join(f"{name}," for name in named)
    return _matching([before + name for name in plan.candidates if name not in named], incomplete)


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
