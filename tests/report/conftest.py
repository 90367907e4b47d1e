"""Figures as they are drawn, before they become files."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib.figure import Figure

from pibert.report import curves, filling, inspection


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that curves, fillings and inspections write; the files are written too."""
    figures: list[Figure] = []

    def keep(write: Callable[[Figure, Path], Path]) -> Callable[[Figure, Path], Path]:
        def kept(figure: Figure, path: Path) -> Path:
            figures.append(figure)
            return write(figure, path)

        return kept

    modules: tuple[ModuleType, ...] = (curves, filling, inspection)
    for module in modules:
        monkeypatch.setattr(module, "write_figure", keep(module.write_figure))
    return figures
