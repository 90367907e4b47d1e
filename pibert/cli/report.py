"""``pibert report``: the page of a comparison."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.options import Json
from pibert.cli.terminal import say, show_json


def report(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a comparison.")],
    as_json: Json = False,
) -> None:
    """Write the report of a comparison: one page with tables and figures, and tables to paste.

    Example: pibert report outputs/comparison
    """
    from pibert.comparison import read_results
    from pibert.evaluation.scores import read_scores
    from pibert.report.comparison.board import Board
    from pibert.report.comparison.page import write_report

    results = read_results(out)
    boards = []
    for name in results["data"]:
        runs = [r for r in results["runs"] if r["data"] == name and "failed" not in r]
        scores = {(r["model"], r["seed"]): read_scores(out / r["folder"]) for r in runs}
        for r in runs:
            if scores[r["model"], r["seed"]].card["identity"] != r["identity"]:
                raise ValueError(
                    f"{out / r['folder']} was judged anew since the results were gathered; run the "
                    "comparison again, which gathers them"
                )
        boards.append(Board(name, results, scores))
    page = write_report(out, results, boards)
    if as_json:
        return show_json({"written": [str(page), str(out / "tables.md"), str(out / "tables.tex")]})
    say(Console(), f"Report: {page}")
