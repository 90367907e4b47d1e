"""The pictures of coverage and detection are drawn whole, with a line for everything given."""

from pathlib import Path

from matplotlib.figure import Figure
from pytest import MonkeyPatch

from studies import trust_figures as trust


def test_pictures_are_written_with_all_that_was_given(tmp_path: Path, monkeypatch: MonkeyPatch):
    seen: list[Figure] = []
    write = trust.write_figure

    def keep(figure: Figure, path: Path) -> Path:
        seen.append(figure)
        return write(figure, path)

    monkeypatch.setattr(trust, "write_figure", keep)
    trust.draw_coverage(
        tmp_path / "coverage.png",
        (0.5, 0.9),
        {"constant": [[0.4, 0.6], [0.8, 0.9]], "residual": [[0.5, 0.5], [0.9, 0.9]]},
        {"wake": [0.5, 0.9]},
        {0.9: [0.9, 0.85, 0.8]},
    )
    curve = ([0.1, 1.0], [0.5, 1.0])
    trust.draw_detection(
        tmp_path / "roc.png", {"units": {"x 10": curve}, "time": {"frozen": curve}}, 0.04
    )
    names = [
        [label for ax in figure.axes for label in ax.get_legend_handles_labels()[1]]
        for figure in seen
    ]
    assert names == [["constant", "residual", "wake", "0.9"], ["x 10", "frozen"]]
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("coverage.png", "roc.png"))
