"""``pibert evaluate``: one run, scored."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pibert.cli.options import Json
from pibert.cli.terminal import digits, say, show_json


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data to judge it on, all of them; without, the test part of its own.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the scores; RUN/evaluation if not given.", show_default=False),
    ] = None,
    rollout: Annotated[int, typer.Option(help="Frames of rollouts to judge; 0: none.")] = 0,
    as_json: Json = False,
) -> None:
    """Score one run: errors of the next frame in physical units, and skill against persistence.

    Example: pibert evaluate runs/demo --data other.h5
    """
    from pibert.comparison.evaluation import add_cost
    from pibert.comparison.evaluation import evaluate as judge
    from pibert.comparison.plan import RolloutPlan
    from pibert.config import parse
    from pibert.evaluation.scores import read_card
    from pibert.experiments.experiment import Experiment
    from pibert.experiments.flows import prepare, prepare_test
    from pibert.experiments.record import read_record
    from pibert.predictor import load

    if not (run / "config.json").exists():
        raise FileNotFoundError(f"{run}: not a run folder, config.json is missing")
    experiment = parse(Experiment, read_record(run / "config.json")["experiment"])
    predictor = load(run)
    if data is None:
        flows = prepare(experiment.data)
    else:
        source = replace(experiment.data, path=str(data), case=None, kind=None, measurement=None)
        flows = prepare_test(source, predictor.spec, predictor.normalizer)
    # Not beside the weights: those scores belong to the comparison that the run is part of.
    out = run / "evaluation" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    judge(run, flows, into=out, rollout=RolloutPlan(steps=rollout))
    add_cost(run, out, "cpu")
    card = read_card(out)
    if as_json:
        kept = {key: card[key] for key in ("entries", "values", "cost", "data")}
        return show_json({**kept, "written": [str(out / "scores.json")]})
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from true ones")
    console.print(_pointwise(card))
    say(console, f"All numbers: {out / 'scores.json'}")


def _pointwise(card: Mapping[str, Any]) -> Table:
    """Metrics by component."""
    entries = card["entries"]["physical/pointwise"]
    values = dict(
        zip(
            ((e["metric"], e["component"]) for e in entries),
            card["values"]["physical/pointwise"],
            strict=True,
        )
    )
    units = {(e["metric"], e["component"]): e["unit"] for e in entries}
    components = list(dict.fromkeys(component for _, component in values))
    table = Table("metric", *components)
    for metric in dict.fromkeys(metric for metric, _ in values):
        unit = units[metric, components[0]]
        name = metric if unit == "1" else f"{metric} [{unit}]"
        table.add_row(Text(name), *(digits(values.get((metric, c))) for c in components))
    return table
