"""The report of a comparison: one page that needs nothing else, and tables to paste.

``OUT/report.html`` holds its style, its script and its pictures, and its policy forbids it to fetch
anything. ``OUT/tables.md`` and ``OUT/tables.tex`` hold the tables alone. All come from results:
no model is loaded and no number is made here.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pibert.data.partial import remove_leftovers, replace_file
from pibert.report.comparison import wording
from pibert.report.comparison.board import Board
from pibert.report.comparison.gallery import FIGURES, Maker, Missing, Picture, pictures_of
from pibert.report.comparison.markup import (
    Cell,
    Table,
    as_html,
    as_latex,
    as_markdown,
    html_text,
    slug,
)
from pibert.report.comparison.style import CSS, JS
from pibert.report.comparison.tables import overview, tables_of

SECTIONS = {
    "Ranking": "Ranked summary",
    "Flows": "Flow by flow",
    "Components": "Component by component",
    "Scales": "Scales and spectra",
    "Physics": "Physics of the predictions",
    "Fields": "Fields",
    "Wake": "Slices and wake",
    "Time": "One-step predictions in time",
    "Model": "Inside the models",
    "Benchmark": "Metrics of the benchmark",
    "Cost": "What it takes",
    "Convergence": "Convergence",
    "Rollout": "Rollouts",
}
"""Keys of tables and figures, in the order of the page."""
_FOLDED = ("haar-",)
"""Tables that few look for."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(
    out: Path,
    results: Mapping[str, Any],
    boards: Sequence[Board],
    figures: Sequence[tuple[str, Maker]] = FIGURES,
) -> Path:
    """Write the page and the tables; an older report is replaced file by file.

    Args:
        out: Folder of the comparison.
        results: The whole of ``results.json``.
        boards: Its data sets.
        figures: Section and function of each figure.

    Returns:
        The path of the page.
    """
    unknown = sorted({section for section, _ in figures} - set(SECTIONS))
    if unknown:
        raise ValueError(
            f"expected figures in known sections, found {', '.join(unknown)}; choose from: "
            f"{', '.join(SECTIONS)}"
        )
    tables = {board.name: tables_of(board) for board in boards}
    together = overview(boards)
    pages = {
        "report.html": _page(results, boards, tables, together, figures),
        "tables.md": _markdown(boards, tables, together),
        "tables.tex": _latex(tables, together),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        remove_leftovers(out / name)
        replace_file(out / name, text.encode())
    return out / "report.html"


Tables = Mapping[str, Sequence[tuple[str, Table]]]


def _markdown(boards: Sequence[Board], tables: Tables, together: Table | None) -> str:
    parts = [f"# {wording.title(boards)}\n"]
    parts += [as_markdown(together)] if together else []
    for board in boards:
        parts += [f"## {board.name}\n", f"{wording.verdict(board)}\n"]
        parts += [as_markdown(table) for _, table in tables[board.name]]
    return "\n".join(parts)


def _latex(tables: Tables, together: Table | None) -> str:
    parts = [r"% Needs \usepackage{booktabs}; wide tables want \small or a landscape page." + "\n"]
    parts += [as_latex(together)] if together else []
    parts += [as_latex(table) for own in tables.values() for _, table in own]
    return "\n".join(parts)


def _page(
    results: Mapping[str, Any],
    boards: Sequence[Board],
    tables: Tables,
    together: Table | None,
    figures: Sequence[tuple[str, Maker]],
) -> str:
    name = wording.title(boards)
    count, order = 0, list(SECTIONS)
    sections, missing = [], []
    for board in boards:
        pictures = sorted(pictures_of(board, figures), key=lambda own: order.index(own.section))
        missing += [own for own in pictures if isinstance(own, Missing)]
        words = wording.verdict(board) if len(boards) > 1 else ""
        sections.append(_data_section(board, words, tables[board.name], pictures, count))
        count += len(pictures)
    # The whole of it once: here, or with each of several data sets.
    say = wording.verdict if len(boards) == 1 else wording.headline
    verdicts = "".join(f'<p class="verdict">{html_text(say(board))}</p>' for board in boards)
    body = [
        f'<header><p class="kicker">Report of a comparison</p><h1>{escape(name)}</h1>{verdicts}',
        _alerts(results, missing),
        f"</header>{_navigation(boards, ''.join(sections))}<main>",
        as_html(together) if together else "",
        f'<h2 id="protocol">Protocol</h2>{_facts(wording.protocol(results, boards))}',
        *sections,
        _failures(results, boards),
        _provenance(results),
        "</main><footer>Everything on this page comes from results.json and the scores of the "
        "runs. The tables alone: tables.md, tables.tex; all records: results.csv; errors flow by "
        "flow: flows.csv; learning curves: curves.csv.</footer>",
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(name)}</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>{JS}</script></body></html>\n"
    )


def _alerts(results: Mapping[str, Any], missing: Sequence[Missing]) -> str:
    failed = sum("failed" in run for run in results["runs"])
    said = []
    if failed:
        runs = "1 run" if failed == 1 else f"{failed} runs"
        said.append(f'{runs} failed: see <a href="#failures">Failures</a>.')
    if missing:
        names = ", ".join(dict.fromkeys(escape(own.name) for own in missing))
        said.append(f"Figures that could not be drawn: {names}; the reasons stand in their place.")
    return f'<p class="alert">{" ".join(said)}</p>' if said else ""


def _navigation(boards: Sequence[Board], sections: str) -> str:
    links = [("protocol", "Protocol", "")]
    links += [(slug(board.name), board.name, " class=set") for board in boards]
    links += [("failures", "Failures", ""), ("provenance", "Provenance", "")]
    if len(boards) == 1:
        home = slug(boards[0].name)
        found = [(f"{home}--{slug(key)}", key, "") for key in SECTIONS]
        links[1:2] = [link for link in found if f'id="{link[0]}"' in sections]
    items = "".join(f'<a href="#{to}"{kind}>{escape(text)}</a>' for to, text, kind in links)
    return f'<nav class="top" aria-label="Contents">{items}</nav>'


def _data_section(
    board: Board,
    words: str,
    tables: Sequence[tuple[str, Table]],
    pictures: Sequence[Picture | Missing],
    count: int,
) -> str:
    """Everything of one data set; sections without content are left out."""
    numbered = list(enumerate(pictures, start=count + 1))
    parts = []
    for key, heading in SECTIONS.items():
        own = _tables([table for section, table in tables if section == key])
        own += "".join(_picture(n, p) for n, p in numbered if p.section == key)
        if own:
            parts.append(f'<h3 id="{slug(board.name)}--{slug(key)}">{heading}</h3>{own}')
    said = f"<p>{html_text(words)}</p>" if words else ""
    facts = _facts(wording.data_facts(board))
    return (
        f'<section class="data" id="{slug(board.name)}" '
        f'data-name="{escape(board.name, quote=True)}">'
        f"<h2>{escape(board.name)}</h2>{said}{facts}{''.join(parts)}</section>"
    )


def _tables(tables: Sequence[Table]) -> str:
    """Beside each other where they fit; those that few look for folded."""
    text, folded = "", ""
    for table in tables:
        if any(f"-{start}" in table.name for start in _FOLDED):
            folded += as_html(table)
        else:
            text += as_html(table)
    text = f'<div class="tables">{text}</div>' if text else ""
    return text + (f"<details><summary>More tables</summary>{folded}</details>" if folded else "")


def _picture(number: int, picture: Picture | Missing) -> str:
    if isinstance(picture, Missing):
        return (
            f'<p class="alert">Figure {number}, {escape(picture.name)}, could not be drawn '
            f"({escape(picture.reason)}).</p>"
        )
    data = base64.b64encode(picture.data).decode()
    wide, high = picture.width, picture.height
    return (
        f'<figure class="picture"><div class="scroll" tabindex="0"><img '
        f'width="{wide}" height="{high}" style="--wide:{wide}px" '
        f'alt="{escape(picture.alt, quote=True)}" '
        f'src="data:{picture.mime};base64,{data}"></div><figcaption>'
        f"<strong>Figure {number}.</strong> {html_text(picture.caption)}</figcaption></figure>"
    )


def _facts(facts: wording.Facts) -> str:
    rows = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in facts)
    return f'<dl class="facts">{rows}</dl>'


def _failures(results: Mapping[str, Any], boards: Sequence[Board]) -> str:
    """Runs without scores, and models without a finite error."""
    rows = [
        (run["data"], run["model"], str(run["seed"]), str(run["failed"]))
        for run in results["runs"]
        if "failed" in run
    ]
    for board in boards:
        unranked = sorted({model for model, _ in board.scores} - set(board.models))
        rows += [(board.name, m, "all", "no finite error, so no rank") for m in unranked]
    if not rows:
        return '<h2 id="failures">Failures</h2><p>No run failed.</p>'
    table = Table(
        name="failed-runs",
        title="Failed runs",
        caption="They take no part in any table.",
        head=("model", "data", "seed", "reason"),
        rows=tuple(
            (Cell(text=m), Cell(text=d), Cell(text=s), Cell(text=why)) for d, m, s, why in rows
        ),
    )
    return f'<h2 id="failures">Failures</h2>{as_html(table)}'


def _provenance(results: Mapping[str, Any]) -> str:
    """Where each number comes from: folders, commits, settings."""
    runs = [run for run in results["runs"] if "failed" not in run]
    keys = ("data", "seed", "folder", "commit", "hardware")
    table = Table(
        name="runs",
        title="Runs",
        caption="Folders are below that of the comparison; each holds weights, settings, log and "
        "scores of its run.",
        head=("model", *keys),
        rows=tuple(
            (Cell(text=run["model"]), *(Cell(text=_shortened(key, run)) for key in keys))
            for run in runs
        ),
    )
    settings = json.dumps(results["comparison"], indent=1)
    models = {f"{run['model']} on {run['data']}": run.get("config") for run in runs}
    return (
        f'<h2 id="provenance">Provenance</h2>{as_html(table)}'
        f"<details><summary>Settings of the comparison</summary><pre>{escape(settings)}</pre>"
        "</details><details><summary>Settings of the models</summary>"
        f"<pre>{escape(json.dumps(models, indent=1))}</pre></details>"
    )


def _shortened(key: str, run: Mapping[str, Any]) -> str:
    value = run.get(key)
    text = "–" if value is None else str(value)
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]{30}", r"\1", text) if key == "commit" else text
