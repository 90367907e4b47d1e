"""The page as a reader and a browser find it: complete, true to the records, and safe."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from pibert.report.comparison import page as page_module
from pibert.report.comparison.figures import FIGURES
from pibert.report.comparison.page import SECTIONS, write_report
from pibert.report.comparison.plots import Plot
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import Cell, Table
from pibert.report.figures import blank
from tests.helpers import refused
from tests.report.comparison.handmade_results import handmade, together

ERRORS = {"unet": 0.02, "pibert": 0.01, "persistence": 0.04}


def square(data: DatasetResults) -> Plot:
    """A "line"."""
    figure = blank(2, 1)
    figure.subplots().plot([0, 1])
    return Plot(figure, f"A line of {data.name}, 2.5e-3 wide.")


def broken(data: DatasetResults) -> Plot:
    raise ZeroDivisionError("nothing < to divide")


def absent(data: DatasetResults) -> None:
    return None


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for own, attrs in self.tags if own == tag]


def read(tmp_path, datasets, figures=(("Fields", square),), **more) -> Page:
    results = {**datasets[0].results, **more}
    path = write_report(tmp_path, results, datasets, figures)
    assert path == tmp_path / "report.html"
    return Page(path.read_text())


def test_page_is_self_contained_and_its_policy_forbids_fetching(tmp_path):
    page = read(tmp_path, [handmade(ERRORS)])
    assert page.open == []
    sources = [value for _, attrs in page.tags for key, value in attrs.items() if key == "src"]
    assert sources and all((source or "").startswith("data:") for source in sources)
    assert page.all("link") == []
    assert all((a["href"] or "").startswith("#") for a in page.all("a"))
    text = (tmp_path / "report.html").read_text()
    assert "http://" not in text and "https://" not in text and "url(" not in text
    policy = [m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert (policy[0]["content"] or "").startswith("default-src 'none'")


def test_links_find_their_targets_and_names_are_unique(tmp_path):
    datasets = together(handmade(ERRORS), handmade(ERRORS, name="a jet"))
    for own in (datasets, datasets[:1]):
        page = read(tmp_path, own)
        ids = Counter(attrs["id"] for _, attrs in page.tags if "id" in attrs)
        assert max(ids.values()) == 1
        assert {(a["href"] or "").removeprefix("#") for a in page.all("a")} <= set(ids)


def test_a_figure_that_cannot_be_drawn_is_named_and_the_others_stay(tmp_path):
    figures = [("Wake", broken), ("Fields", absent), ("Fields", square)]
    page = read(tmp_path, [handmade(ERRORS)], figures)
    assert len(page.all("img")) == 1 and page.all("img")[0]["alt"] == 'A "line".'
    assert "ZeroDivisionError: nothing < to divide" in page.words
    # Numbered in the order of the page, not of the list.
    assert "Figure 2, broken" in page.words and "absent" not in page.words


@pytest.mark.parametrize("file_format", ["pdf", "svg", "png"])
def test_each_figure_is_also_a_file_of_its_own(tmp_path, file_format):
    data = handmade(ERRORS)
    figures = [("Fields", square), ("Fields", absent), ("Fields", broken)]
    for _ in range(2):  # a second report replaces the first
        write_report(tmp_path, data.results, [data], figures, file_format)
        (file,) = (tmp_path / "figures").iterdir()
        assert file.suffix == f".{file_format}" and file.stem.endswith("-square")
    start = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}[file_format]
    content = file.read_bytes()
    assert content.startswith(start)
    if file_format == "svg":
        assert b"<text" in content  # text, not outlines
    write_report(tmp_path, data.results, [data], figures, file_format)
    assert file.read_bytes() == content
    with refused("bmp", "pdf"):
        write_report(tmp_path, data.results, [data], figures, "bmp")


def test_figures_have_sections_of_the_page(tmp_path):
    assert {section for section, _ in FIGURES} <= set(SECTIONS)
    assert len({make.__name__ for _, make in FIGURES}) == len(FIGURES)
    with pytest.raises(ValueError, match="Nowhere.*Ranking"):
        write_report(tmp_path, {}, [], [("Nowhere", square)])


def test_an_old_report_is_replaced_and_nothing_is_left_over(tmp_path):
    for name in ("report.html", "tables.md", "tables.tex"):
        (tmp_path / name).write_text("old")
    read(tmp_path, [handmade(ERRORS)])
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "tables.md", "tables.tex"}
    assert "| 1 | pibert | **0.0100** [0.00900, 0.0120]" in (tmp_path / "tables.md").read_text()
    assert r"\label{tab:wakes-summary}" in (tmp_path / "tables.tex").read_text()


def test_names_are_escaped_in_the_page(tmp_path):
    data = handmade({"<script>alert(1)</script>": 0.01, "persistence": 0.04}, name="<i>wakes")
    page = read(tmp_path, [data])
    assert len(page.all("script")) == 1 and page.all("i") == []
    assert "<script>alert(1)</script>" in page.words


HOSTILE = Table(
    name="hostile",
    title="A & B | <script>",
    caption="100 % of x_1",
    head=("model", "error ↓"),
    rows=(
        (Cell(text="<b>|a_b&c%</b>"), Cell(text="2.44e-4", number=2.44e-4, best=True, level=True)),
        (Cell(text="v1e5"), Cell(text="-0.5", number=-0.5, note="[-1.0e-5, 3.00]")),
    ),
    foot=((Cell(text="(data)"), Cell(text="")),),
)


def test_tables_escape_markup_of_html_and_latex(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "overview", lambda datasets: HOSTILE)
    page = read(tmp_path, [handmade(ERRORS)])
    assert page.open == [] and "<b>|a_b&c%</b>" in page.words
    text = (tmp_path / "tables.tex").read_text()
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 1
        assert not re.search(r"(?<!\\)[%_#]", row)
    assert r"$2.44\times10^{-4}$" in rows[0] and "v1e5" in rows[1]


def test_failed_runs_and_models_without_a_finite_error_are_listed(tmp_path):
    data = handmade(ERRORS, failed=[("fno2d", "loss is <nan>")])
    blind = DatasetResults(
        data.name, data.results, {**data.scores, ("pinn", 0): data.first("unet")}
    )
    page = read(tmp_path, [blind])
    assert "1 run failed" in page.words and "loss is <nan>" in page.words
    assert "pinn" in page.words and "no finite error, so no rank" in page.words
    assert "No run failed." in read(tmp_path, [handmade(ERRORS)]).words


def test_a_comparison_of_one_seed_says_that_training_varies(tmp_path):
    data = handmade(ERRORS)
    plan = {**data.results["comparison"], "seeds": [0]}
    for comparison, expected in ((plan, True), (data.results["comparison"], False)):
        words = read(tmp_path, [data], comparison=comparison).words
        assert ("variation between training runs is unknown" in words) == expected
