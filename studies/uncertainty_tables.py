"""The tables of the study of prediction intervals and warnings, in Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_tables(results: dict[str, Any], path: Path) -> str:
    """Write all tables; returns their text."""
    text = "\n".join(
        (
            "Coverage of the next frame on unseen trajectories\n",
            _coverage(results),
            "Spread over trajectories, regions and lead times\n",
            _spread(results),
            _leads(results),
            "Detection\n",
            _detection(results),
        )
    )
    path.write_text(text)
    return text


def _coverage(results: dict[str, Any]) -> str:
    first = next(iter(results["coverage"].values()))
    head = ["intervals", "channel", *(f"{level:g}" for level in first["levels"]), "width at 0.9"]
    rows = []
    for name, one in results["coverage"].items():
        for c, channel in enumerate(one["channels"]):
            shares = [
                f"{row[c]:.3f} ± {error[c]:.3f}"
                for row, error in zip(one["marginal"], one["standard_error"], strict=True)
            ]
            width = one["width"][one["levels"].index(0.9)][0][c]
            rows.append([name, channel, *shares, f"{width:.4f}"])
    return _table(head, rows)


def _spread(results: dict[str, Any]) -> str:
    first = next(iter(results["coverage"].values()))
    head = ["intervals", "where", *(f"{level:g}" for level in first["levels"])]
    rows = []
    for name, one in results["coverage"].items():
        rows.append(
            [name, "lowest and highest trajectory"]
            + [f"{min(shares):.3f} to {max(shares):.3f}" for shares in one["trajectories"]]
        )
        for region, shares in one["regions"].items():
            if region != "everywhere":
                rows.append([name, region, *(f"{share:.3f}" for share in shares)])
    return _table(head, rows)


def _leads(results: dict[str, Any]) -> str:
    first = next(iter(results["coverage"].values()))
    leads = len(first["by_lead"][0])
    head = ["intervals", "level", *(str(lead) for lead in range(1, leads + 1))]
    rows = [
        [name, f"{level:g}", *(f"{share:.3f}" for share in one["by_lead"][place])]
        for name, one in results["coverage"].items()
        for place, level in enumerate(one["levels"])
        if level in (0.5, 0.9)
    ]
    return _table(head, rows)


def _detection(results: dict[str, Any]) -> str:
    found = results["detection"]
    rows = [["none: false alarms", str(found["windows"]), "", f"{found['false_alarms']:.1%}", ""]]
    for name, one in found["faults"].items():
        rows.append(
            [
                name,
                str(one["windows"]),
                f"{one['auc']:.3f}",
                f"{one['detected']:.1%}",
                one["reason"],
            ]
        )
    return _table(["fault", "windows", "AUC", "detected", "most frequent reason"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
