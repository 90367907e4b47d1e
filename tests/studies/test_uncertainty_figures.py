"""The figures of coverage and detection."""

from pathlib import Path

from studies import uncertainty_figures as figures


def test_figures_of_coverage_and_detection_are_written(tmp_path: Path) -> None:
    figures.draw_coverage(
        tmp_path / "coverage.png",
        (0.5, 0.9),
        {"constant": [[0.4, 0.6], [0.8, 0.9]], "residual": [[0.5, 0.5], [0.9, 0.9]]},
        {"wake": [0.5, 0.9]},
        {0.9: [0.9, 0.85, 0.8]},
    )
    curve = ([0.1, 1.0], [0.5, 1.0])
    figures.draw_detection(
        tmp_path / "roc.png", {"units": {"x 10": curve}, "time": {"frozen": curve}}, 0.04
    )
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("coverage.png", "roc.png"))
