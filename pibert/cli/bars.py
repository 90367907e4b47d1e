"""Error bars on the command line: the options, the calibrated model, and what its alarm says."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pibert.cli.terminal import say

if TYPE_CHECKING:
    from pibert.predictor import Predictor
    from pibert.trust import Bars, Trusted

_PANEL = "Error bars"
Level = Annotated[
    float | None,
    typer.Option(
        help="Add error bars that hold the truth with this chance, such as 0.9. Needs a "
        "calibration: pibert calibrate.",
        metavar="SHARE",
        rich_help_panel=_PANEL,
    ),
]
Calibrated = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="Folder of the calibration, where it does not lie beside the model.",
        metavar="FOLDER",
        rich_help_panel=_PANEL,
    ),
]
FalseAlarms = Annotated[
    float | None,
    typer.Option(
        help="Share of sound inputs for which a false alarm is accepted; 0.05 if not given.",
        metavar="RATE",
        rich_help_panel=_PANEL,
    ),
]
ExtendBars = Annotated[
    bool,
    typer.Option(
        "--extend-bars",
        help="Give steps beyond the calibrated lead times the last bars, which are too narrow.",
        rich_help_panel=_PANEL,
    ),
]


def load_model(
    model: str,
    device: str,
    level: float | None,
    calibration: Path | None,
    false_alarms: float | None,
) -> "tuple[Predictor, Trusted | None]":
    """A model, and where bars are wanted the same with its calibration."""
    from pibert import trust
    from pibert.predictor import load

    if level is None:
        if calibration is not None:
            raise ValueError("--calibration goes with --level, such as --level 0.9")
        if false_alarms is not None:
            raise ValueError("--false-alarms goes with --level, such as --level 0.9")
        return load(model, device), None
    if not 0 < level < 1:
        raise ValueError(f"--level takes a share between 0 and 1, such as 0.9, found {level:g}")
    trusted = trust.load(model, device, calibration=calibration)
    # Refuse before any work what the calibration cannot tell.
    trusted.calibration.quantiles(level)
    trusted.calibration.watch.check_rate(false_alarms)
    return trusted.predictor, trusted


def check_leads(trusted: "Trusted | None", steps: int, extend: bool) -> str | None:
    """Refuse steps without bars of their own unless they may have the last ones: a remark then."""
    if trusted is None:
        if extend:
            raise ValueError("--extend-bars goes with --level, such as --level 0.9")
        return None
    leads = trusted.calibration.leads
    if steps <= leads:
        return None
    if not extend:
        raise ValueError(
            f"--steps: expected at most {leads} with bars, the lead times that were calibrated, "
            f"found {steps}; take fewer, calibrate more (pibert calibrate --leads {steps}), or "
            "give later steps the last bars, which are too narrow as errors grow: --extend-bars"
        )
    return f"steps beyond {leads} have the bars of step {leads}, which are too narrow for them"


def describe_bars(trusted: "Trusted | None", level: float | None) -> dict[str, Any]:
    """What files say of the bars; empty without any."""
    if trusted is None:
        return {}
    own = trusted.calibration
    return {
        "bars": {
            "level": level,
            "leads": own.leads,
            "rests_on": own.assumption(),
        }
    }


class Alarms:
    """What the alarm says of every window that a prediction started from."""

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []
        self._rate = self._lowest = self._most_unknown = 0.0

    def add(self, newest: list[int], bars: "Bars") -> None:
        """The alarm of some windows, known by their newest frames."""
        alarm = bars.alarm
        self._rate, self._lowest = alarm.rate, alarm.lowest
        self._most_unknown = alarm.most_unknown
        columns = {
            "p": alarm.p.tolist(),
            "raised": alarm.raised.tolist(),
            "oddest": alarm.parts,
            "limited": alarm.limited.tolist(),
            "unknown": alarm.unknown.tolist(),
        }
        for frame, *told in zip(newest, *columns.values(), strict=True):
            self.windows.append({"frame": frame, **dict(zip(columns, told, strict=True))})

    def to_dict(self) -> dict[str, Any]:
        raised = sum(window["raised"] for window in self.windows)
        facts = {"raised": raised, "rate": self._rate, "least_p": self._lowest}
        return {**facts, "can_be_raised": self._can_be_raised, "windows": self.windows}

    @property
    def _can_be_raised(self) -> bool:
        return self._lowest <= self._rate

    def tell(self) -> None:
        """On standard error."""
        if not self.windows:
            return
        raised = [window for window in self.windows if window["raised"]]
        worst = min(self.windows, key=lambda window: window["p"])
        many = len(self.windows) > 1
        found = f"p = {worst['p']:.3g}" + (f" from frame {worst['frame']}" if many else "")
        found = f"{'least ' if many else ''}{found}, oddest: {worst['oddest']}"
        if shares := [window["unknown"] for window in self.windows if window["limited"]]:
            which = f"{len(shares)} of {len(self.windows)} inputs have" if many else "the input has"
            share = f"{'up to ' if len(shares) > 1 else ''}{max(shares):.2%}"
            found += (
                f"; {which} more unknown points ({share}) than those of the calibration "
                f"({self._most_unknown:.2%} at most), and not all scores count there"
            )
        console = Console(stderr=True)
        if raised:
            which = f"{len(raised)} of {len(self.windows)} inputs are" if many else "the input is"
            say(
                console,
                f"alarm: {which} unlike the training data ({found}; raised at p <= "
                f"{self._rate:g}): bars mean nothing there",
                "bold red",
            )
        elif self._can_be_raised:
            say(console, f"no alarm: {found} (raised at p <= {self._rate:g})")
        else:
            say(
                console,
                f"not judged: {found}, but the calibration tells no p below {self._lowest:.3g}, "
                f"and alarms are raised at p <= {self._rate:g} (--false-alarms): no all-clear",
                "bold red",
            )
