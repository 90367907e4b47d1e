"""Results of invented models: a wavy wake, later and noisier the lower the rank of a model."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pibert.evaluation.leads import Horizons, LeadTimes
from pibert.evaluation.measure import Frames, Measure
from pibert.evaluation.measures import frame_measures
from pibert.evaluation.scores import Scores
from pibert.evaluation.scoring import vars_of
from pibert.evaluation.statistics import Statistics
from pibert.evaluation.temporal import Temporal, probe_series
from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.report.comparison.plots import Plot
from pibert.report.comparison.results import UNTRAINED, DatasetResults

NAMES = tuple(
    "pibert unet persistence fno2d transolver mwt dmd fourierflow-det pitt fourierflow "
    "linear-extrapolation mean-advection deeponet2d pinn training-mean".split()
)
FRAMES, LEADS, STRIP = 40, 12, 11
RULE = "frames at the 5th, 50th and 95th percentile of the error of persistence"


def spec() -> FieldSpec:
    ny, nx = 24, 40
    rows, columns = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
    body = ((rows - 12) * 0.12) ** 2 + ((columns - 8) * 0.1) ** 2 < 0.4**2
    grid = Grid((ny, nx), 0.1, 0.12, body=body, origin=(-0.8, -1.4))
    return FieldSpec(
        family="incompressible", channels=("u", "v"), grid=grid, units=("m/s", "m/s"), dt=0.25
    )


def flow(times: Tensor, own: FieldSpec) -> Tensor:
    """Waves that travel downstream, each with its own speed, (t, c, y, x)."""
    x, y = own.grid.coordinates(torch.float64)
    t = times[:, None, None]
    u, v = torch.ones_like(x) + 0 * t, 0 * x + 0 * t
    for n in range(1, 9):
        shape = n ** (-5 / 3) * torch.exp(-(y**2)) * torch.cos(n * y)
        u = u + 0.3 * shape * torch.sin(1.9 * n * x - (1 + n) * t)
        v = v + 0.5 * shape * torch.cos(1.9 * n * x - (1 + n) * t)
    return torch.stack((u, v), 1)


def scored_frames(place: int, own: FieldSpec) -> Frames:
    """What the model of a rank predicts: the flow a little late, with noise."""
    assert own.dt is not None
    times = torch.arange(1, FRAMES + 1) * own.dt
    draw = torch.Generator().manual_seed(place)
    truth, last = flow(times, own), flow(times - own.dt, own)
    noise = torch.randn(truth.shape, generator=draw, dtype=torch.float64)
    late = flow(times - 0.02 * (place + 1), own) + 0.01 * (place + 1) * noise
    assert own.grid.body is not None
    known = (~own.grid.body).expand(FRAMES, -1, -1)
    return Frames(prediction=late, truth=truth, last=last, known=known, body=~known, spec=own)


def arrays_of(frames: Frames, measures: list[Measure]) -> dict[str, Tensor]:
    series = probe_series(frames)
    picks = [3, 20, 36]
    found = {f"terms/physical/{m.name}": m.terms(frames) for m in measures}
    found |= {
        "rows/trajectory": torch.full((FRAMES,), 2),
        "rows/frame": torch.arange(FRAMES) + 1,
        "picks/rows": torch.tensor(picks),
        "strip/rows": torch.arange(20, 20 + STRIP),
        "strip/truth": frames.truth[20 : 20 + STRIP].half(),
        "strip/prediction": frames.prediction[20 : 20 + STRIP].half(),
        "strip/known": frames.known[20 : 20 + STRIP],
        "probes/places": torch.tensor(series.probes),
        "probes/truth": series.truth,
        "probes/prediction": series.prediction,
    }
    for name in ("truth", "prediction", "last", "known"):
        values = getattr(frames, name)[picks]
        found[f"picks/{name}"] = values if name == "known" else values.float()
    return found


def rollout_of(place: int, own: FieldSpec) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Errors that grow with the lead; the fourth model diverges at the eighth frame."""
    measure = LeadTimes(spec=own, normalizer=Normalizer.identity(2))
    lead = torch.arange(1, LEADS + 1, dtype=torch.float64)
    error = 0.002 * (place + 1) * lead**1.5
    gone = torch.where((lead >= 8) & (place == 3), 1.0, 0.0)
    lost = torch.where(gone > 0, math.inf, error)
    columns = []
    for entry in measure.entries:
        if entry.metric == "skill":
            columns.append(1 - lost * 4)
        elif entry.metric == "correlation":
            columns.append((-error).exp())
        else:
            columns.append(gone if entry.metric == "not_finite" else lost)
    stable = max(1.0, 12.0 - place)
    card = {
        "steps": LEADS,
        "starts": 4,
        "entries": [vars_of(entry) for entry in measure.entries],
        "summary": [vars_of(entry) for entry in Horizons().entries],
    }
    return card, {
        "rollout/curves": torch.stack(columns, 1),
        "rollout/summary": torch.tensor([stable, float(place < 1), 3.5], dtype=torch.float64),
        "rollout/diverged": torch.full((4,), 8 if place == 3 else 0),
    }


def free_run_of(
    frames: Frames, place: int, own: FieldSpec, normalizer: Normalizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Ten runs of one flow, a little apart; those of the fourth model diverge half-way."""
    measure = Statistics(spec=own, normalizer=normalizer)
    if place == 3:
        lost = frames.prediction.clone()
        lost[FRAMES // 2 :] = math.nan
        frames = replace(frames, prediction=lost)
    terms = measure.terms(frames).repeat(10, 1)
    card = {
        "frames": [FRAMES] * 10,
        "survived": measure.survived(terms).tolist(),
        "entries": [vars_of(entry) for entry in measure.entries],
    }
    arrays = {
        "free_run/terms": terms,
        "free_run/sampling": measure.sampling_terms(frames).repeat(10, 1),
        "free_run/trajectory": torch.full((10,), 2),
        "free_run/frame": torch.arange(10) * FRAMES,
        "free_run/frames": torch.full((10,), FRAMES),
        "free_run/run": torch.tensor(5),
    }
    shown = {f"free_run/shown/{name}": v for name, v in measure.pictures(frames).items()}
    return card, arrays | shown


def free_run_records(name: str, card: dict[str, Any], values: Tensor) -> list[dict[str, Any]]:
    return [
        {"data": "wake", "model": name, "seed": 0, "space": "physical", "against_best": None}
        | entry
        | {"metric": f"free_run_{entry['metric']}", "value": value if known else None}
        | {"low": 0.8 * value if known else None, "high": 1.2 * value if known else None}
        for entry, value in zip(card["entries"], values.tolist(), strict=True)
        for known in [math.isfinite(value)]
    ]


def trained(place: int) -> dict[str, Any]:
    curve = [
        [epoch, {"reconstruction": 0.1 * (1 + place) / epoch**0.8}] for epoch in range(2, 21, 2)
    ]
    stage = {"epochs": 20, "seconds": 30.0 * (1 + place), "curve": curve, "best_epoch": 18}
    early = {"epochs": 5, "seconds": 10.0, "curve": [], "best_epoch": 0}
    return {"training": stage} | ({"pretraining": early} if place == 0 else {})


@lru_cache
def invented(count: int = 3) -> DatasetResults:
    """A data of so many models, ranked as ``NAMES``."""
    own = spec()
    normalizer = Normalizer((1.0, 0.0), (0.3, 0.3))
    measures = [
        *frame_measures(own, normalizer, has_body=True, length_unit="m"),
        Temporal(spec=own),
    ]
    scores, runs, records, order = {}, [], [], []
    for place, name in enumerate(NAMES[:count]):
        frames = scored_frames(place, own)
        arrays = arrays_of(frames, measures)
        roll, more = rollout_of(place, own)
        free, runs_alone = free_run_of(frames, place, own, normalizer)
        arrays |= runs_alone
        learned = name not in UNTRAINED
        card: dict[str, Any] = {
            "data": {
                "spec": own.to_dict(),
                "normalizer": {"mean": [1.0, 0.0], "std": [0.3, 0.3]},
                "length_unit": "m",
                "has_body": True,
                "names": ["one", "two", "three"],
                "parameters": [{}, {}, {"Re": 150.0}],
            },
            "training": trained(place) if learned else {},
            "cost": {
                "parameters": 10_000 * (1 + place) if learned else 0,
                "flops": 1_000_000 * (1 + place) if learned else 0,
                "batches": [
                    {"batch": 1, "ms_per_sample": 2.0 + place % 5},
                    {"batch": 128, "ms_per_sample": 0.1 * (1 + place % 4)},
                ],
                "device": "a machine",
            },
            "rollout": roll,
            "free_run": free,
            "pick_rule": RULE,
        }
        arrays |= more
        if learned:
            arrays["alignment"] = torch.tensor([0.5, 0.6, 0.7, 0.8]).double() - 0.04 * place
        scores[name, 0] = Scores(card, arrays)
        runs.append({**card, "data": "wake", "model": name, "seed": 0})
        for measure in measures:
            values = measure.values(arrays[f"terms/physical/{measure.name}"].sum(0)).tolist()
            records += [
                {"data": "wake", "model": name, "seed": 0, "space": "physical", "value": value}
                | {"low": 0.9 * value, "high": 1.1 * value, "against_best": None}
                | vars_of(entry)
                for entry, value in zip(measure.entries, values, strict=True)
            ]
        statistics = Statistics(spec=own, normalizer=normalizer)
        records += free_run_records(name, free, statistics.values(arrays["free_run/terms"].sum(0)))
        if place == 0:
            sampling = statistics.values(arrays["free_run/sampling"].sum(0))
            records += free_run_records("truth", free, sampling)
        nmse = next(
            r["value"]
            for r in records
            if (r["model"], r["metric"], r["component"]) == (name, "nmse", "all")
        )
        order.append({"rank": place + 1, "model": name, "nmse": nmse})
    free_runs = {"runs": 10, "flows": 10, "frames": [FRAMES] * 2, "intervals": "10 flows"}
    facts = {"ranking": order, "length_unit": "m", "test_frames": FRAMES, "free_run": free_runs}
    results = {
        "data": {"wake": facts},
        "comparison": {"samples": 5000},
        "runs": runs,
        "records": records,
    }
    return DatasetResults("wake", results, scores)


@lru_cache
def once(make: Callable[[DatasetResults], Plot | None], count: int) -> Plot:
    """The figure of a data of so many models, drawn once for all tests; it must be there."""
    drawn = make(invented(count))
    assert drawn is not None
    return drawn


def axes_of(drawn: Plot | None) -> list[Any]:
    """The panels of a figure that there must be."""
    assert drawn is not None
    return list(drawn.figure.axes)


def legend_of(ax: Any) -> list[str]:
    """The entries of a panel's legend."""
    return [text.get_text() for text in ax.get_legend().get_texts()]


def without(data: DatasetResults, *prefixes: str) -> DatasetResults:
    """The same data with some arrays taken out of all scores."""
    scores = {
        key: Scores(own.card, {n: v for n, v in own.arrays.items() if not n.startswith(prefixes)})
        for key, own in data.scores.items()
    }
    return DatasetResults(data.name, data.results, scores)
