"""A board with exact predictions: the truth plus an error that grows with a model's place.

The grid is not square, its cells are not either. The body is a box of rows 5 to 8 and columns 6 to
9, so its diameter is 4 * 0.2 = 0.8 and its centre is row 6.5, column 7.5.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pibert.evaluation.measures import frame_measures
from pibert.evaluation.scores import Scores
from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import Drawn

MODELS = ("unet", "pibert", "fno2d", "persistence", "mwt", "transolver", "pitt", "fourierflow")
ROWS, COLUMNS = 16, 48


def many(count: int) -> tuple[str, ...]:
    """Names of so many models, the best first."""
    return (*MODELS, *(f"pibert-variant-{n}" for n in range(20)))[:count]


def spec(*, body: bool = True, family: str = "incompressible") -> FieldSpec:
    solid = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    solid[5:9, 6:10] = True
    grid = Grid((ROWS, COLUMNS), dx=0.1, dy=0.2, body=solid if body else None, origin=(-0.7, -1.2))
    return FieldSpec(channels=("u", "v"), units=("m/s", "m/s"), grid=grid, family=family)


def truth(own: FieldSpec, count: int = 3) -> Tensor:
    x, y = own.grid.coordinates(torch.float64)
    shift = torch.arange(count, dtype=torch.float64)[:, None, None]
    u = 1.5 - 0.8 * torch.exp(-(y**2)) + 0.1 * torch.sin(2 * x - shift)
    return torch.stack((u, 0.4 * torch.cos(2 * x - shift) * torch.exp(-(y**2))), dim=1)


def make_board(
    count: int = 3,
    *,
    seeds: int = 1,
    intervals: bool = True,
    own: FieldSpec | None = None,
    names: tuple[str, ...] | None = None,
) -> Board:
    """Three picked frames, 20 test frames of two trajectories, all records that bars need."""
    own = own or spec()
    names = names or many(count)
    scores = {
        (name, seed): _scores(own, place + 1) for place, name in enumerate(names)
        for seed in range(seeds)
    }  # fmt: skip
    records = [
        record
        for place, name in enumerate(names)
        for seed in range(seeds)
        for record in _records(own, name, seed, place + 1, intervals)
    ]
    ranking = [{"rank": n, "model": m, "nmse": 0.01 * n} for n, m in enumerate(names, start=1)]
    facts: dict[str, Any] = {"ranking": ranking, "test_frames": 20}
    facts["intervals"] = "blocks of 4 frames" if intervals else "none: too few"
    return Board("wakes", {"data": {"wakes": facts}, "records": records, "runs": []}, scores)


def _scores(own: FieldSpec, place: int) -> Scores:
    true = truth(own)
    known = torch.ones(3, ROWS, COLUMNS, dtype=torch.bool)
    known[:, 0, :3] = False
    arrays = {
        "picks/rows": torch.tensor([2, 13, 19]),
        "picks/truth": true.float(),
        "picks/prediction": (true + 0.01 * place * torch.sin(7 * true)).float(),
        "picks/known": known,
        "rows/trajectory": torch.tensor([0] * 10 + [2] * 10),
        "rows/frame": torch.cat((torch.arange(1, 11), torch.arange(5, 15))),
    }
    data = {
        "spec": own.to_dict(),
        "normalizer": {"mean": [0.0, 0.0], "std": [1.0, 1.0]},
        "length_unit": "m",
        "names": ["a", "b", "c"],
        "parameters": [{"Re": 50.0}, {"Re": 100.0}, {"Re": 150.0}],
        "has_body": own.grid.body is not None,
    }
    return Scores({"data": data, "pick_rule": "frames picked by a coin"}, arrays)


def _records(
    own: FieldSpec, model: str, seed: int, place: int, intervals: bool
) -> list[dict[str, Any]]:
    measures = frame_measures(
        own, Normalizer.identity(2), has_body=own.grid.body is not None, length_unit="m"
    )
    entries = [entry for measure in measures for entry in measure.entries]
    found = []
    for entry in entries:
        value = 0.01 * place + 0.001 * seed
        value = 1 - value if entry.better == "higher" else value
        record = {"data": "wakes", "model": model, "seed": seed, "space": "physical"}
        record |= {"metric": entry.metric, "component": entry.component, "unit": entry.unit}
        ends = (
            {"low": 0.9 * value, "high": 1.1 * value} if intervals else {"low": None, "high": None}
        )
        found.append({**record, "value": value, **ends})
    return found


@lru_cache
def drawn_once(draw: Callable[[Board], Drawn | None], count: int) -> Drawn:
    """The figure of a board of so many models, for tests that look at it without changing it."""
    drawn = draw(make_board(count))
    assert drawn is not None
    return drawn
