"""The report of a comparison: one self-contained page, and its tables as Markdown and LaTeX.

``report.html`` holds its style, script and figures, and its policy forbids the browser to fetch
anything. ``tables.md`` and ``tables.tex`` hold the tables alone. The markup is in
``report/templates``; everything comes from results, and no weights are loaded.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from pibert.data.partial import remove_leftovers, replace_file
from pibert.report.comparison import text
from pibert.report.comparison.figures import (
    FIGURES,
    Maker,
    Picture,
    draw_figures,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import DAGGER, Cell, slug
from pibert.report.comparison.tables import benchmarks, tables_of
from pibert.report.comparison.tables.ranking import overview
from pibert.report.figures import FORMATS

SECTIONS = {
    "Ranking": "Ranked summary",
    "Published": "Beside the paper",
    "Rollout": "Rollouts",
    "Structure": "Moving bodies",
    "Statistics": "Statistics of free runs",
    "Flows": "Flow by flow",
    "Components": "Component by component",
    "Scales": "Scales and spectra",
    "Physics": "Physics of next-frame predictions",
    "Fields": "Fields",
    "Wake": "Slices and wake",
    "Time": "One-step predictions in time",
    "Model": "Inside the models",
    "Benchmark": "Benchmark metrics",
    "Cost": "Cost",
    "Convergence": "Convergence",
}
"""Sections of a dataset, in the order of the page."""
_RUN_KEYS = ("model", "data", "seed", "folder", "commit", "hardware")
_COMMIT = re.compile(r"\b([0-9a-f]{10})[0-9a-f]{30}")
"""Of which the first ten digits are shown."""
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e(-?\d+)(?!\w)")
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "²": r"\textsuperscript{2}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "−": "$-$",
    "–": "--",
    DAGGER: r"\textsuperscript{\textdagger}",
}


def write_report(
    out: Path,
    results: Mapping[str, Any],
    datasets: Sequence[DatasetResults],
    figures: Sequence[tuple[str, Maker]] = FIGURES,
    file_format: str | None = None,
) -> Path:
    """Write the page and the tables of ``results.json`` to a folder; returns the path of the page.

    An older report is replaced file by file. ``figures`` has section and function of each figure.
    With a ``file_format`` of ``FORMATS``, the folder ``figures`` holds each figure on its own, as
    ``DATA-NAME.pdf``.
    """
    if file_format is not None and file_format not in FORMATS:
        raise ValueError(f"expected figures as one of {', '.join(FORMATS)}, found {file_format!r}")
    if unknown := sorted({section for section, _ in figures} - set(SECTIONS)):
        raise ValueError(
            f"expected figures in known sections, found {', '.join(unknown)}; choose from: "
            f"{', '.join(SECTIONS)}"
        )
    tables = {data.name: tables_of(data) for data in datasets}
    pictures = _numbered({data.name: draw_figures(data, figures, file_format) for data in datasets})
    done = [run for run in results["runs"] if "failed" not in run]
    configs = {f"{run['model']} on {run['data']}": run.get("config") for run in done}
    context = {
        "results": results,
        "datasets": datasets,
        "title": text.title(datasets),
        "sections": SECTIONS,
        "overview": overview(datasets),
        "benchmarks": [
            t for t in (benchmarks.summary(datasets), benchmarks.provenance(datasets)) if t
        ],
        "tables": tables,
        "pictures": pictures,
        "used": lambda name: {
            *(section for section, _ in tables[name]),
            *(picture.section for picture in pictures[name]),
        },
        "missing": dict.fromkeys(p.name for own in pictures.values() for p in own if p.error),
        "failed_runs": [run for run in results["runs"] if "failed" in run],
        "failures": _failures(results, datasets),
        "run_keys": _RUN_KEYS,
        "runs": [[_COMMIT.sub(r"\1", str(run.get(key, "–"))) for key in _RUN_KEYS] for run in done],
        "settings": json.dumps(results["comparison"], indent=1),
        "models": json.dumps(configs, indent=1),
    }
    out.mkdir(parents=True, exist_ok=True)
    templates = environment()
    for name in ("report.html", "tables.md", "tables.tex"):
        content = templates.get_template(name).render(context)
        remove_leftovers(out / name)
        replace_file(out / name, content.encode())
    for name, own in pictures.items():
        for picture in own:
            if picture.file:
                (out / "figures").mkdir(exist_ok=True)
                file = f"{slug(name)}-{picture.name.replace('_', '-')}.{file_format}"
                replace_file(out / "figures" / file, picture.file)
    return out / "report.html"


def environment() -> Environment:
    """The templates with their filters."""
    templates = Environment(
        loader=PackageLoader("pibert.report"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "slug": slug,
        "prose": lambda value: html_number(value.replace(" %", "\N{NO-BREAK SPACE}%")),
        "number": html_number,
        "head": lambda label: re.sub(" (?=[↓↑])", "\N{NO-BREAK SPACE}", label),
        "markdown": lambda value: re.sub(r"([\\|*_`<>])", r"\\\1", value),
        "latex": latex,
        "latex_row": latex_row,
    }
    templates.globals |= {
        "protocol": text.protocol,
        "data_facts": text.data_facts,
    }
    return templates


def html_number(value: str) -> Markup:
    """A text with powers of ten as superscripts and real minus signs."""
    powers = _POWER.sub(r"\1×10<sup>\2</sup>", str(escape(value)))
    return Markup(_MINUS.sub("−", powers))


def latex(value: str, is_number: bool = False) -> str:
    """Escape a text for LaTeX; powers of ten of numbers become formulas."""
    if not is_number:
        return "".join(_LATEX.get(letter, letter) for letter in value)
    text = ""
    for number, piece in enumerate(_POWER.split(_MINUS.sub("−", value))):
        kind = number % 3  # plain text, mantissa, exponent
        text += (latex(piece), rf"${piece}\times", rf"10^{{{piece}}}$")[kind]
    return text


def latex_row(row: Sequence[Cell]) -> str:
    cells = []
    for cell in row:
        is_number = cell.number is not None
        found = latex(cell.text, is_number)
        found = rf"\textbf{{\boldmath {found}}}" if cell.best else found
        found += _LATEX[DAGGER] if cell.level else ""
        note = rf" {{\scriptsize {latex(cell.note, is_number)}}}" if cell.note else ""
        cells.append(found + note)
    line = " & ".join(cells)
    # A bracket at the start of a line would be an option of the \\ before it.
    return ("{}" if line.startswith("[") else "") + line + r" \\"


def _numbered(drawn: Mapping[str, Sequence[Picture]]) -> dict[str, list[Picture]]:
    """Pictures in the order of the page, numbered over all datasets."""
    order, numbers = list(SECTIONS), itertools.count(1)
    return {
        name: [
            picture._replace(number=next(numbers))
            for picture in sorted(pictures, key=lambda picture: order.index(picture.section))
        ]
        for name, pictures in drawn.items()
    }


def _failures(results: Mapping[str, Any], datasets: Sequence[DatasetResults]) -> list[list[str]]:
    """Model, data, seed and reason of runs without scores, and of models without finite error."""
    failed = [run for run in results["runs"] if "failed" in run]
    rows = [[str(run[key]) for key in ("model", "data", "seed", "failed")] for run in failed]
    for data in datasets:
        unranked = sorted({model for model, _ in data.scores} - set(data.models))
        rows += [[model, data.name, "all", "no finite error, so no rank"] for model in unranked]
    return rows
