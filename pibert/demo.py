"""The demonstration: commands that anyone can type, one after the other.

rollout   shipped weights go on alone from a recording that they were not trained on
compare   a small PIBERT is pretrained and trained beside baselines, on simulated wakes
report    tables and figures of that, on one page
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pibert.inference import shipped_models

SHIPPED = "cylinder-mr"
ROLLOUT_STEPS = 39
"""To the end of the recording that comes with the weights."""


@dataclass(frozen=True)
class Step:
    """One command of the demonstration."""

    happens: str
    lasts: str
    """On two cores."""
    command: tuple[str, ...]
    """Without the word ``pibert``."""


def steps(out: Path, preset: str) -> tuple[Step, ...]:
    """The whole demonstration.

    Args:
        out: The folder that everything goes to.
        preset: The comparison.
    """
    comparison = str(out / "comparison")
    return (
        Step(
            f"Roll the shipped model {SHIPPED} out from a wake that it was not trained on",
            "half a minute",
            (
                *("rollout", os.path.relpath(shipped_models()[SHIPPED] / "sample.h5")),
                *("--model", SHIPPED, "--steps", str(ROLLOUT_STEPS)),
                *("--out", str(out / "rollout.png"), "--out", str(out / "rollout.gif")),
                "--overwrite",
            ),
        ),
        Step(
            "Simulate wakes, train small models with the same budget, and score them on wakes that "
            "none of them has seen",
            "four minutes, and seconds when it is done already",
            ("compare", "--preset", preset, "--out", comparison),
        ),
        Step("The report is written", "half a minute", ("report", comparison)),
    )


def suggestions(out: Path, preset: str) -> dict[str, str]:
    """What to try next, and what it does; the arguments are those of ``steps``."""
    # Of the presets, only this one is a part of the whole.
    folder = out / "comparison" if preset == "tour" else Path("outputs/comparison")
    return {
        f"pibert compare --preset demo --out {folder}": "all models; what is done is kept",
        f"pibert serve {SHIPPED}": "a page to try the shipped model, in a browser",
        "pibert inspect FILE": "what is in your own data, and what looks wrong",
        "pibert --help": "everything else",
    }
