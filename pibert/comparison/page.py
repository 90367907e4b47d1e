"""The report page of a comparison."""

from pathlib import Path

from pibert.comparison.results import read_results
from pibert.evaluation.scores import read_scores
from pibert.report.comparison.page import write_report
from pibert.report.comparison.results import DatasetResults


def write_page(out: Path, file_format: str | None = None) -> Path:
    """Write the report of a comparison into its folder; returns the page.

    With a file format (pdf, svg, png), also each figure on its own.
    """
    results = read_results(out)
    datasets = []
    for name in results["data"]:
        runs = [r for r in results["runs"] if r["data"] == name and "failed" not in r]
        scores = {(r["model"], r["seed"]): read_scores(out / r["folder"]) for r in runs}
        for r in runs:
            if scores[r["model"], r["seed"]].card["identity"] != r["identity"]:
                raise ValueError(
                    f"{out / r['folder']} was scored again after the results were collected; "
                    "run the comparison again to collect them"
                )
        coarse = None
        if facts := results["data"][name].get("coarse_solver"):
            coarse = read_scores(out / facts["folder"])
        datasets.append(DatasetResults(name, results, scores, coarse))
    return write_report(out, results, datasets, file_format=file_format)
