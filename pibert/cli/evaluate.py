"""``pibert evaluate``: one run, scored."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pibert.cli.flow_input import Remarks, noting_warnings
from pibert.cli.options import Json
from pibert.cli.prediction_scores import leads_shown
from pibert.cli.terminal import digits, say, show_json

if TYPE_CHECKING:
    from pibert.evaluation.scores import Scores

_SHARES = ("skill", "correlation", "diverged")


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

    With --rollout also by lead time, from starts spread over the data.

    Example: pibert evaluate runs/demo --data other.h5 --rollout 20
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
    remark = Remarks()
    with noting_warnings(remark):
        if data is None:
            flows = prepare(experiment.data)
        else:
            plan = replace(experiment.data, path=str(data), case=None, kind=None, measurement=None)
            flows = prepare_test(plan, predictor.spec, predictor.normalizer)
    # Not beside the weights: those scores belong to the comparison that the run is part of.
    out = run / "evaluation" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    with noting_warnings(remark):
        scores = judge(run, flows, into=out, rollout=RolloutPlan(steps=rollout))
    add_cost(run, out, "cpu")
    card = read_card(out)
    rolled = _rollouts(scores) if rollout else None
    if as_json:
        kept = {key: card[key] for key in ("entries", "values", "cost", "data")}
        return show_json({**kept, "rollout": rolled, "written": [str(out / "scores.json")]})
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from true ones")
    console.print(_pointwise(card))
    if rolled is not None:
        _show_rollouts(console, rolled)
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


def _rollouts(scores: "Scores") -> dict[str, Any]:
    """What the rollouts came to: by lead time, and how long they were of use."""
    facts = scores.card["rollout"]
    by_step: dict[int, dict[str, dict[str, float]]] = {}
    for step, row in enumerate(scores.arrays["rollout/curves"].tolist(), 1):
        by_step[step] = {}
        for entry, value in zip(facts["entries"], row, strict=True):
            by_step[step].setdefault(entry["metric"], {})[entry["component"]] = value
    summary = scores.arrays["rollout/summary"].tolist()
    return {
        "steps": facts["steps"],
        "starts": facts["starts"],
        "by_step": by_step,
        "summary": {e["metric"]: v for e, v in zip(facts["summary"], summary, strict=True)},
    }


def _show_rollouts(console: Console, rolled: Mapping[str, Any]) -> None:
    wanted = leads_shown(rolled["steps"])
    first = next(iter(rolled["by_step"].values()))
    metrics = [metric for metric, values in first.items() if "all" in values]
    table = Table("step", *(metric.replace("_", " ") for metric in metrics))
    for step, found in rolled["by_step"].items():
        if step in wanted:
            values = {metric: found[metric]["all"] for metric in metrics}
            # Shares in few digits: the table would not fit a terminal.
            table.add_row(
                str(step),
                *(f"{v:.3f}" if m in _SHARES else digits(v) for m, v in values.items()),
            )
    say(console, f"Rollouts from {rolled['starts']} starts, all channels together:")
    console.print(table)
    stable = digits(rolled["summary"]["stable_horizon"])
    say(
        console,
        f"Stable horizon: {stable} of {rolled['steps']} steps in the mean (squared error below "
        "half of the variance in time).",
    )
