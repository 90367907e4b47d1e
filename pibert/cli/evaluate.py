"""``pibert evaluate``: one run, scored."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pibert.cli.options import Json, SourceOptions, option, with_options
from pibert.cli.terminal import NotePrinter, digits, leads_shown, say, show_json
from pibert.notes import Note, collecting

if TYPE_CHECKING:
    from pibert.evaluation.scores import Scores

_SHARES = ("skill", "correlation", "diverged")
_MOST_FLOWS = 24
"""Flows in the table; of more, an even selection is shown."""
_ALIAS = "lmae"
"""The paper's name for mae: in the files, but not shown twice."""


@with_options
def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Score this run; with --data any model folder, or the name of a shipped model.",
        ),
    ],
    source: SourceOptions,
    data: Annotated[
        Path | None,
        option("Score the model on all of these flows. Default: the test split of the run."),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "Write the scores to this folder. Default: RUN/evaluation; with --data "
            "RUN/evaluation-FILE; for a shipped model NAME-evaluation-FILE."
        ),
    ] = None,
    rollout: Annotated[int, option("Also score rollouts of this many frames; 0: none.")] = 0,
    free_run: Annotated[
        int,
        option(
            "Run up to this many frames from the start of every flow and compare the statistics; "
            "0: no such runs."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Score one run on test data.

    Prints errors of the next frame, and skill against persistence. With --rollout, it also scores
    rollouts by lead time, from starts spread over the data. With --free-run, it also compares the
    statistics of a free-running model: mean flow, Reynolds stresses, spectra, frequency.

    Example: pibert evaluate runs/demo --data other.h5 --rollout 20

    Example: pibert evaluate cylinder-base --data new.h5 --out scores

    Example: pibert evaluate runs/demo --data other.npz --unit m/s --dt 0.01
    """
    from pibert.evaluation.scores import read_card
    from pibert.experiments.evaluation import RolloutPlan, add_cost, add_flows
    from pibert.experiments.evaluation import evaluate as score
    from pibert.experiments.held_out import flows_to_score
    from pibert.inference.model_file import find_model, shipped_models

    if data is None:
        source.refuse_without_data()
    folder = find_model(run)
    notes = NotePrinter()
    with collecting(notes):
        flows = flows_to_score(folder, data, source.as_settings())
        if out is None:
            # Not beside the weights: those scores belong to the comparison that the run is in.
            name = "evaluation" if data is None else f"evaluation-{_slug(data)}"
            shipped = folder in shipped_models().values()
            out = Path(f"{folder.name}-{name}") if shipped else folder / name
        rollouts = RolloutPlan(steps=rollout, free_run=free_run)
        scores = score(folder, flows, into=out, rollout=rollouts)
    add_cost(folder, out, "cpu")
    by_flow = add_flows(out, scores)
    card = read_card(out)
    if empty := int(scores.arrays["errors/prediction"].isnan().sum()):
        text = f"{empty} of the frames hold no flow at known points and are not scored"
        notes.add(Note("empty-frames", text))
    values = _by_metric(card)
    if ((skill := values["skill", "all"]) or 0) < -0.01:
        text = f"the skill is {digits(skill)}: repeating the last frame has a smaller error"
        remedy = "train the model longer, or on flows like these; check units and time step"
        notes.add(Note("negative-skill", text, remedy))
    if beyond := [flow["outside"] for flow in by_flow["flows"] if flow["outside"]]:
        names, seen = sorted(set().union(*beyond)), by_flow["training_range"]
        ranges = (f"{name} {low:g} to {high:g}" for name in names for low, high in [seen[name]])
        text = (
            f"{len(beyond)} of {len(by_flow['flows'])} flows are outside the training range "
            f"({', '.join(ranges)}): their scores are of an extrapolation"
        )
        notes.add(Note("extrapolation", text, severity="info"))
    rolled = _rollouts(scores) if rollout else None
    if as_json:
        kept = {key: card[key] for key in ("entries", "values", "cost", "data")}
        written = [str(out / "scores.json")]
        free = card.get("free_run")
        return show_json(
            {**kept, "rollout": rolled, "free_run": free, "by_flow": by_flow, "written": written}
        )
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from recorded ones")
    if filled := card["data"]["filled_points"]:
        say(
            console,
            f"{filled:,} points of these frames were filled, not measured; they are not scored",
        )
    console.print(_pointwise_table(card, values))
    say(
        console,
        "lpcc: correlation of prediction and truth. skill: 1 is perfect, 0 as good as repeating "
        "the last frame. mae is the lmae of the paper.",
    )
    if len(by_flow["flows"]) > 1:
        _show_flows(console, by_flow)
    if rolled is not None:
        _show_rollouts(console, rolled)
    if "free_run" in card:
        _show_free_runs(console, card["free_run"])
    say(console, f"All numbers: {out / 'scores.json'}")


def _slug(data: Path) -> str:
    """Return a folder name for a file, a folder or a pattern."""
    return re.sub(r"[^\w.-]+", "-", data.resolve().stem).strip("-") or "data"


def _by_metric(card: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    """Return the pointwise scores by metric and component."""
    entries, values = (card[key]["physical/pointwise"] for key in ("entries", "values"))
    return {(e["metric"], e["component"]): v for e, v in zip(entries, values, strict=True)}


def _pointwise_table(card: Mapping[str, Any], values: Mapping[tuple[str, str], Any]) -> Table:
    """Metrics by component; a common unit stands with the metric, others with the values."""
    entries = card["entries"]["physical/pointwise"]
    units = {(e["metric"], e["component"]): e["unit"] for e in entries}
    components = list(dict.fromkeys(component for _, component in units))
    table = Table("metric", *components)
    for metric in dict.fromkeys(metric for metric, _ in units if metric != _ALIAS):
        shown = [units.get((metric, component), "1") for component in components]
        common = {units[key] for key in units if key[0] == metric}
        name = metric
        if len(common) == 1 and common != {"1"}:
            name, shown = f"{metric} [{common.pop()}]", ["1"] * len(components)
        numbers = (digits(values.get((metric, component))) for component in components)
        cells = (n if u == "1" else f"{n} {u}" for n, u in zip(numbers, shown, strict=True))
        table.add_row(Text(name), *map(Text, cells))
    return table


def _show_flows(console: Console, found: Mapping[str, Any]) -> None:
    """Print the errors of the next frame of every condition, or else of every flow."""
    kind = "flows" if found["conditions"] is None else "conditions"
    names = sorted(set().union(*(row["parameters"] for row in found[kind])))
    errors = {row["metric"]: row[kind] for row in found["errors"] if row["lead"] is None}
    shown = sorted(
        range(len(found[kind])),
        key=lambda n: [found[kind][n]["parameters"].get(name, math.inf) for name in names],
    )
    count = {"flows": "flow", "conditions": "flows"}[kind]
    table = Table(count, *names, "nmse", "skill", "share of error")
    for n in shown[:: math.ceil(len(shown) / _MOST_FLOWS)]:
        row = found[kind][n]
        values = (row["parameters"].get(name) for name in names)
        marks = (" *" if name in row.get("outside", ()) else "" for name in names)
        cells = [digits(v) + mark for v, mark in zip(values, marks, strict=True)]
        cells += [digits(errors[metric][n]) for metric in ("nmse", "skill")]
        share = errors["squared_error_share"][n]
        first = row["name"] if kind == "flows" else str(row["flows"])
        table.add_row(*map(Text, (first, *cells, "-" if share is None else f"{share:.1%}")))
    say(console, f"Next frame of each {kind.removesuffix('s')}, all channels together:")
    console.print(table)
    if len(shown) > _MOST_FLOWS:
        say(console, f"Not all of the {len(shown)} are shown; scores.json has them.")
    if any(flow["outside"] for flow in found["flows"]):
        say(console, "*: outside the training range.")
    mean, median = (digits(found[f"nmse_flow_{name}"]) for name in ("mean", "median"))
    text = f"mean {mean}, median {median}."
    say(console, f"NMSE of single flows, each relative to its own energy: {text}")


def _rollouts(scores: "Scores") -> dict[str, Any]:
    """Scores of the rollouts by lead time, and their stable horizon."""
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
    from pibert.data.wording import counted

    wanted = leads_shown(rolled["steps"])
    # The RMSE, which has a unit, is in the JSON: the table would not fit a terminal.
    metrics = [m for m, values in rolled["by_step"][1].items() if "all" in values and m != "rmse"]
    table = Table("step", *(metric.replace("_", " ") for metric in metrics))
    for step, scores in rolled["by_step"].items():
        if step in wanted:
            values = {metric: scores[metric]["all"] for metric in metrics}
            cells = (f"{v:.3f}" if m in _SHARES else digits(v) for m, v in values.items())
            table.add_row(str(step), *cells)
    say(console, f"Rollouts from {counted(rolled['starts'], 'start')}, all channels together:")
    console.print(table)
    stable = digits(rolled["summary"]["stable_horizon"])
    say(
        console,
        f"Stable horizon: {stable} of {rolled['steps']} steps on average (squared error below half "
        "of the variance in time).",
    )


def _show_free_runs(console: Console, runs: Mapping[str, Any]) -> None:
    """Print the statistics of free runs beside the sampling error of the true flow."""
    table = Table("statistic", "model", "truth against itself")
    for entry, *values in zip(runs["entries"], runs["values"], runs["sampling"], strict=True):
        name = entry["metric"].replace("_", " ")
        unit = "" if entry["unit"] == "1" else f" [{entry['unit']}]"
        model, truth = ("-" if value is None else digits(value) for value in values)
        of_truth = entry["metric"] not in ("survival", "diverged")
        table.add_row(Text(name + unit), Text(model), Text(truth if of_truth else ""))
    size = " to ".join(map(str, sorted({min(runs["frames"]), max(runs["frames"])})))
    say(console, f"Statistics of {len(runs['frames'])} free runs of {size} frames:")
    console.print(table)
    say(
        console,
        "A perfect model has errors of 0 and ratios of 1, up to the last column: how far the two "
        "halves of the true flow differ. - : not defined, or a run diverged.",
    )
