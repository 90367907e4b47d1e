"""Figures of the coverage of prediction intervals and of what the OOD warning detects."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from pibert.report.figures import blank, picture_path, write_figure

_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#e0a030", "#6f4e9c", "#555555")
_MARKS = ("o", "s", "^", "D", "v", "P")


def draw_coverage(
    path: str | os.PathLike[str],
    levels: Sequence[float],
    by_method: Mapping[str, Sequence[Sequence[float]]],
    by_region: Mapping[str, Sequence[float]],
    by_lead: Mapping[float, Sequence[float]],
    *,
    title: str = "",
) -> Path:
    """Draw the share of true values inside their intervals: by level, region and lead time.

    Args:
        path: A PNG file.
        levels: Nominal ones.
        by_method: Coverage of every test trajectory at each level (level, trajectory), by method;
            dots are trajectories, a line joins their means.
        by_region: Coverage at each level, by region.
        by_lead: Coverage at each lead time, by level.
        title: A line above the panels.
    """
    path = picture_path(path)
    figure = blank(11.0, 3.7)
    left, middle, right = figure.subplots(1, 3)
    for place, (name, found) in enumerate(by_method.items()):
        colour, shift = _COLOURS[place], 0.008 * (place - (len(by_method) - 1) / 2)
        for level, shares in zip(levels, found, strict=True):
            left.plot([level + shift] * len(shares), shares, ".", color=colour, ms=3, alpha=0.35)
        means = [sum(shares) / len(shares) for shares in found]
        left.plot(levels, means, color=colour, marker=_MARKS[place], ms=4, lw=1, label=name)
    _diagonal(left, levels)
    left.set_title("each trajectory (dots) and mean", fontsize=10)
    for place, (name, region) in enumerate(by_region.items()):
        middle.plot(
            levels, region, color=_COLOURS[place], marker=_MARKS[place], ms=4, lw=1, label=name
        )
    _diagonal(middle, levels)
    middle.set_title("by region", fontsize=10)
    for place, (level, leads) in enumerate(by_lead.items()):
        colour = _COLOURS[place]
        frames = range(1, len(leads) + 1)
        right.plot(
            frames, leads, color=colour, marker=_MARKS[place], ms=4, lw=1, label=f"{level:g}"
        )
        right.axhline(level, color=colour, lw=0.8, ls=":")
    right.set_title("by lead time (dotted: nominal)", fontsize=10)
    right.set_xlabel("frames ahead", fontsize=9)
    right.xaxis.get_major_locator().set_params(integer=True)
    lowest = min(share for found in by_method.values() for shares in found for share in shares)
    for ax in (left, middle, right):
        ax.set_ylim(min(min(levels) - 0.15, lowest - 0.02), 1.01)
        ax.set_ylabel("true values inside their intervals", fontsize=9)
        ax.tick_params(labelsize=8)
        ax.legend(fontsize=8, frameon=False, loc="center right" if ax is right else "lower right")
    if title:
        figure.suptitle(title, fontsize=11)
    return write_figure(figure, path)


def draw_detection(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    operating: float,
    *,
    title: str = "",
) -> Path:
    """Draw the share of faulty windows detected over the share of false alarms, a panel per kind.

    Args:
        path: A PNG file.
        panels: False alarms and detections of each fault, by kind of fault.
        operating: The measured share of false alarms at the rate that was accepted.
        title: A line above the panels.
    """
    path = picture_path(path)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = blank(4.4 * columns, 4.1 * rows)
    chance = [10 ** (-3 + place / 20) for place in range(61)]
    for number, (heading, faults) in enumerate(panels.items(), 1):
        ax = figure.add_subplot(rows, columns, number)
        for place, (name, (false, found)) in enumerate(faults.items()):
            turn, colour = divmod(place, len(_COLOURS))
            style = "--" if turn else "-"
            ax.plot(false, found, color=_COLOURS[colour], ls=style, lw=1.2, label=name)
        ax.plot(chance, chance, color="0.7", lw=0.8, ls="--")
        if operating:
            ax.axvline(operating, color="0.5", lw=0.8, ls=":")
        ax.set_xscale("log")
        ax.set_xlim(3e-3, 1)
        ax.set_ylim(-0.02, 1.03)
        ax.set_title(heading, fontsize=10)
        ax.set_xlabel("false alarms, measured on these windows", fontsize=9)
        ax.tick_params(labelsize=8)
        ax.set_ylabel("faulty windows detected", fontsize=9)
        ax.legend(
            fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2
        )
    if title:
        figure.suptitle(title, fontsize=11)
    return write_figure(figure, path)


def _diagonal(ax: Axes, levels: Sequence[float]) -> None:
    ends = [min(levels) - 0.1, 1.0]
    ax.plot(ends, ends, color="0.6", lw=0.8, ls="--")
    ax.set_xlabel("nominal level", fontsize=9)
    ax.set_xlim(ends[0], 1.02)
