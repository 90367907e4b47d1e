"""The page as a reader and a browser find it: whole, true to the records, and safe."""

import base64
import io
from collections import Counter
from html.parser import HTMLParser

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import Drawn
from pibert.report.comparison.gallery import FIGURES, Missing, name_of, pictures_of
from pibert.report.comparison.page import SECTIONS, _shortened, write_report
from pibert.report.comparison.wording import data_facts, protocol, split_text, verdict
from tests.report.comparison.handmade_board import handmade, together
from tests.report.comparison.invented_board import invented

Split = dict[str, list[list[int | None]]]
ERRORS = {"unet": 0.02, "pibert": 0.01, "persistence": 0.04}


def square(board: Board) -> Drawn:
    figure = Figure(figsize=(2, 1), dpi=50, facecolor="white")
    FigureCanvasAgg(figure)
    figure.subplots().plot([0, 1])
    return Drawn(figure, f"A line of {board.name}, 2.5e-3 wide.", 'A "line".')


def broken(board: Board) -> Drawn:
    raise ZeroDivisionError("nothing < to divide")


def absent(board: Board) -> None:
    return None


def pair(board: Board) -> list[Drawn]:
    return [square(board), square(board)]


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


def read(tmp_path, boards, figures=(("Fields", square),), **more) -> Page:
    results = {**boards[0].results, **more}
    path = write_report(tmp_path, results, boards, figures)
    assert path == tmp_path / "report.html"
    return Page(path.read_text())


def test_the_page_needs_nothing_from_outside_and_says_so_to_the_browser(tmp_path):
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
    boards = together(handmade(ERRORS), handmade(ERRORS, name="a jet"))
    for own in (boards, boards[:1]):
        page = read(tmp_path, own)
        ids = Counter(attrs["id"] for _, attrs in page.tags if "id" in attrs)
        assert max(ids.values()) == 1
        assert {(a["href"] or "").removeprefix("#") for a in page.all("a")} <= set(ids)


def test_several_data_sets_have_a_section_each_and_a_table_together(tmp_path):
    page = read(tmp_path, together(handmade(ERRORS), handmade(ERRORS, name="jet")))
    sets = [attrs["data-name"] for attrs in page.all("section")]
    assert sets == ["wakes", "jet"]
    assert "All data sets" in page.words
    assert len(page.all("img")) == 2 and "Figure 2" in page.words
    assert page.words.count("Next comes unet") == 2  # once for each, in its section


def test_headings_step_down_one_by_one_and_pictures_have_words(tmp_path):
    page = read(tmp_path, [handmade(ERRORS)])
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.all("html")[0]["lang"] == "en"
    (image,) = page.all("img")
    assert image["alt"] == 'A "line".' and image["width"] == "192" and image["height"] == "96"
    assert "A line of wakes, 2.5×10" in page.words


def test_pictures_are_what_was_drawn_at_their_full_resolution(tmp_path):
    (image,) = read(tmp_path, [handmade(ERRORS)]).all("img")
    head, _, data = (image["src"] or "").partition(";base64,")
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert (head, picture.format, picture.size) == ("data:image/webp", "WEBP", (300, 150))
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_a_figure_that_cannot_be_drawn_is_named_and_the_others_stay(tmp_path):
    figures = [("Wake", broken), ("Fields", absent), ("Fields", pair)]
    page = read(tmp_path, [handmade(ERRORS)], figures)
    assert len(page.all("img")) == 2
    assert "test_page.broken" in page.words
    assert "ZeroDivisionError: nothing < to divide" in page.words
    assert "absent" not in page.words
    # Numbered in the order of the page, not of the list.
    places = [page.words.index(f"Figure {n}") for n in (1, 2, 3)]
    assert places == sorted(places)
    assert "Figure 3, test_page.broken" in page.words


def test_figures_of_unknown_sections_are_refused(tmp_path):
    with pytest.raises(ValueError, match="found Nowhere; choose from: Ranking, Flows, Components"):
        write_report(tmp_path, {}, [], [("Nowhere", square)])


def test_an_old_report_is_replaced_and_nothing_is_left_over(tmp_path):
    for name in ("report.html", "tables.md", "tables.tex"):
        (tmp_path / name).write_text("old")
    read(tmp_path, [handmade(ERRORS)])
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "tables.md", "tables.tex"}
    assert "| 1 | pibert | **0.0100** [0.00900, 0.0120]" in (tmp_path / "tables.md").read_text()
    assert r"\label{tab:wakes-summary}" in (tmp_path / "tables.tex").read_text()


def test_failed_runs_and_models_without_a_number_are_told(tmp_path):
    board = handmade(ERRORS, failed=[("fno2d", "loss is <nan>")])
    blind = Board(board.name, board.results, {**board.scores, ("pinn", 0): board.first("unet")})
    page = read(tmp_path, [blind])
    assert "1 run failed" in page.words and "loss is <nan>" in page.words
    assert "pinn" in page.words and "no finite error, so no rank" in page.words
    assert "No run failed." in read(tmp_path, [handmade(ERRORS)]).words


def test_names_cannot_put_anything_into_the_page(tmp_path):
    board = handmade({"<script>alert(1)</script>": 0.01, "persistence": 0.04}, name="<i>wakes")
    page = read(tmp_path, [board])
    assert len(page.all("script")) == 1 and page.all("i") == []
    assert "<script>alert(1)</script>" in page.words


def test_the_verdict_says_who_wins_by_how_much_and_how_sure():
    said = verdict(handmade(ERRORS))
    assert "over 1,234 test frames, pibert predicts the next frame best of 3 models" in said
    assert "NMSE 0.0100 (95 % interval [0.00900, 0.0120])" in said
    assert "persistence) gives 0.0400, 4.00 times as much" in said
    assert "Next comes unet with 0.0200" in said and "2.00 times the error of pibert" in said
    assert "All other models differ significantly from pibert" in said
    assert "One seed" in said
    level = verdict(handmade(ERRORS, level=["unet"]))
    assert "Not significantly different from pibert: unet." in level


def test_the_verdict_hides_no_defeat():
    lost = verdict(handmade({"persistence": 0.01, "unet": 0.02, "fno2d": 0.03, "pibert": 0.05}))
    assert "No model beats repeating the last frame." in lost
    assert "The winner is a reference predictor, not a trained network" in lost
    assert "the best network is unet, in place 2" in lost
    assert "In place 4 is pibert with 0.0500" in lost
    worse = verdict(handmade({"unet": 0.01, "persistence": 0.02, "fno2d": 0.03, "pibert": 0.05}))
    assert "fno2d and pibert are worse than that" in worse


def test_the_verdict_claims_nothing_without_intervals():
    said = verdict(handmade(ERRORS, marked=False))
    assert "nothing here is certain" in said
    assert "significant" not in said and "interval [" not in said
    assert "means over 2 seeds" in verdict(handmade({"unet": [0.1, 0.2], "pibert": [0.3, 0.4]}))


def test_a_winner_without_error_divides_by_nothing():
    assert "∞ times as much" in verdict(handmade({"unet": 0.0, "persistence": 0.2}))


def test_splits_are_told_by_trajectories_or_by_frames():
    whole: Split = {
        "train": [[2, 0, None], [3, 0, None]],
        "valid": [[0, 0, None]],
        "calibration": [],
    }
    assert split_text(whole) == "training 2 trajectories, validation 1 trajectory"
    times: Split = {"train": [[0, 0, 600]], "valid": [[0, 610, 700]], "test": [[0, 710, None]]}
    assert split_text(times) == (
        "training frames 0 to 599 of 1 trajectory, validation frames 610 to 699 of 1 trajectory, "
        "test frames 710 to the last of 1 trajectory"
    )
    mixed: Split = {"test": [[0, 5, 9], [1, 0, None]]}
    assert split_text(mixed) == "test parts of 2 trajectories"


def test_the_protocol_tells_budget_selection_and_the_command():
    board = handmade(ERRORS)
    facts = dict(protocol(board.results, [board]))
    assert facts["Budget"].startswith("20,000 samples for every trained model")
    assert facts["Selection"] == "epoch of the least error of the next frame on the validation part"
    assert "frames picked by a coin" in facts["Reference"]
    assert facts["Commit"] == "c" * 40
    assert facts["Command"].startswith("not recorded")
    given = {**board.results, "command": ["pibert", "compare", "--out", "my results"]}
    assert dict(protocol(given, [board]))["Command"] == "pibert compare --out 'my results'"


def test_the_facts_of_data_have_units_and_the_method_of_intervals():
    facts = dict(data_facts(handmade(ERRORS)))
    assert facts["Fields"] == "u [m/s], v [m/s]"
    assert facts["Grid"] == "12 rows × 20 columns, spacing (x × y) 0.1 × 0.2 [D]; frames 0.25 apart"
    assert "paired bootstrap over blocks of 5 frames" in facts["Intervals"]
    assert "correlation time is 3.2 frames" in facts["Intervals"]
    few = dict(data_facts(handmade(ERRORS, marked=False)))
    assert few["Intervals"].startswith("none: expected at least 10")


def test_all_figures_have_a_section_and_a_name_of_their_own():
    assert {section for section, _ in FIGURES} <= set(SECTIONS)
    names = [name_of(make) for _, make in FIGURES]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_every_figure_is_drawn_where_the_data_suffice():
    board = invented(4)
    unjudged = {"low": None, "high": None, "against_best": None}
    records = [{**unjudged, **own} for own in board.results["records"]]
    whole = Board(board.name, {**board.results, "records": records}, board.scores)
    made = list(pictures_of(whole))
    assert [own for own in made if isinstance(own, Missing)] == []
    assert len(made) >= 12


def test_the_first_seed_is_named_in_the_provenance() -> None:
    assert _shortened("seed", {"seed": 0}) == "0"
    assert _shortened("commit", {"commit": None}) == "–"
