"""The page of results: probes that some results have and others do not."""

import json
from pathlib import Path
from typing import Any

from studies import page


def table(folder: Path, *rows: dict[str, Any]) -> list[list[str]]:
    """The cells of the consistency table that the page has."""
    common = {"amplitude": None, "auc": 0.9, "accuracy": 0.8, "n": 7}
    measured = {"date": "2024-01-01", "device": "a machine", "commit": "0123456789"}
    part = {
        "trajectories": 3,
        "measured": measured,
        "unavailable": {},
        "rows": [common | row for row in rows],
    }
    (folder / "pretraining").mkdir(exist_ok=True)
    (folder / "pretraining" / "consistency.json").write_text(json.dumps(part))
    page.write(folder)
    lines = (folder / "pretraining.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return [cells[0], *cells[2:]]


def test_results_without_a_frame_probe_have_no_column_for_it(tmp_path: Path) -> None:
    noise = {"kind": "noise", "probe_auc": 0.5}
    head, row = table(tmp_path, noise)  # as written before there was one
    assert head == ["negative", "amplitude", "AUC", "accuracy", "probe AUC", "windows"]
    assert row == ["noise", "", "**0.900**", "0.800", "0.500", "7"]
    parameters = {"kind": "parameters", "probe_auc": None, "frame_probe_auc": None}
    head, _, row = table(tmp_path, noise | {"frame_probe_auc": None}, parameters)
    assert len(head) == 6 and row[4] == "\u2013"
    assert table(tmp_path, parameters | {"probe_auc": 0.5})[1][4] == "\u2013"
