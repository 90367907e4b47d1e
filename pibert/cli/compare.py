"""``pibert compare``, ``evaluate`` and ``report``: models under one protocol, what came of it."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pibert.cli.terminal import say

if TYPE_CHECKING:
    from pibert.comparison import Comparison, Job


def compare(
    out: Annotated[
        Path,
        typer.Option(help="Folder of the comparison. What is done there is not done again."),
    ],
    preset: Annotated[
        str, typer.Option(help="demo, quick; for a GPU: cylinder, fsi, jet.")
    ] = "demo",
    config: Annotated[
        Path | None, typer.Option(help="A TOML file instead of a preset.", show_default=False)
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(help="Only some entrants: pibert,unet,persistence.", show_default=False),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 0,1,2.", show_default=False)] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            help="A finished run on the same data as a further entrant.",
            metavar="NAME=FOLDER",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Runs at a time, each on a GPU of its own where there are any.")
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a setting of the plan: --set samples=20000 (epochs follow from it).",
            metavar="NAME=VALUE",
        ),
    ] = None,
) -> None:
    """Train models under one protocol, judge them once on test data, and rank them.

    All see the same number of samples; the epoch is chosen on the validation part alone.

    Example: pibert compare --preset demo --out outputs/comparison
    """
    from pibert.comparison import carry_out, find_comparison, gather, load_comparison, refuse_other
    from pibert.config import with_overrides

    changes = tuple(settings or [])
    if config is not None:
        plan = load_comparison(config, changes)
    else:
        plan = with_overrides(find_comparison(preset), changes)
    plan = _chosen(plan, models, seeds, runs or [])
    if workers < 1:
        raise ValueError(f"expected at least 1 worker, found {workers}")
    refuse_other(plan, out)
    with _LiveTable(plan) as table:
        failed = carry_out(plan, out, table, workers=workers)
    results = gather(plan, out, failed, shlex.join(["pibert", *sys.argv[1:]]))
    console = Console()
    for name, facts in results["data"].items():
        _show_ranking(console, name, facts, results)
    for job, reason in failed.items():
        say(console, f"{job.entrant} (seed {job.seed}, {job.data}) failed: {reason}", "red")
    say(console, f"Results: {out / 'results.json'}, {out / 'results.csv'}")
    say(console, f"See them: pibert report {shlex.quote(str(out))}")
    if failed:
        raise typer.Exit(1)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Score one run: errors of the next frame in physical units, and skill against persistence.

    Example: pibert evaluate runs/demo --data other.h5
    """
    from pibert.comparison.evaluation import evaluate as judge
    from pibert.comparison.plan import RolloutPlan
    from pibert.config import parse
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
    scores = judge(run, flows, into=out, rollout=RolloutPlan(steps=rollout))
    card = scores.card
    if as_json:
        print(json.dumps({key: card[key] for key in ("entries", "values", "cost", "data")}))
        return
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from true ones")
    console.print(_pointwise(card))
    say(console, f"All numbers: {out / 'scores.json'}")


def report(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a comparison.")],
) -> None:
    """Write the report of a comparison: one page with tables and figures, and tables to paste.

    Example: pibert report outputs/comparison
    """
    from pibert.comparison import read_results
    from pibert.evaluation.scores import read_scores
    from pibert.report.comparison.board import Board
    from pibert.report.comparison.page import write_report

    results = read_results(out)
    boards = []
    for name in results["data"]:
        runs = [r for r in results["runs"] if r["data"] == name and "failed" not in r]
        scores = {(r["model"], r["seed"]): read_scores(out / r["folder"]) for r in runs}
        for r in runs:
            if scores[r["model"], r["seed"]].card["identity"] != r["identity"]:
                raise ValueError(
                    f"{out / r['folder']} was judged anew since the results were gathered; run the "
                    "comparison again, which gathers them"
                )
        boards.append(Board(name, results, scores))
    page = write_report(out, results, boards)
    say(Console(), f"Report: {page}")


def _chosen(
    plan: "Comparison", models: str | None, seeds: str | None, runs: list[str]
) -> "Comparison":
    """The plan with some of its entrants, other seeds, and finished runs."""
    from pibert.comparison import Entrant

    entrants = dict(plan.entrants)
    if models is not None:
        names = [name.strip() for name in models.split(",") if name.strip()]
        unknown = [name for name in names if name not in entrants]
        if unknown:
            raise ValueError(
                f"unknown entrants {', '.join(unknown)}; choose from: {', '.join(entrants)}"
            )
        # Skill and the choice of frames need the reference.
        entrants = {n: e for n, e in entrants.items() if n in (*names, plan.reference)}
    for text in runs:
        name, sign, folder = text.partition("=")
        if not sign or not name or not folder:
            raise ValueError(f"expected NAME=FOLDER after --run, found {text!r}")
        entrants[name] = Entrant(run=str(Path(folder).resolve()))
    if seeds is not None:
        try:
            plan = replace(plan, seeds=tuple(int(seed) for seed in seeds.split(",")))
        except ValueError:
            raise ValueError(f"expected seeds such as 0,1,2, found {seeds!r}") from None
    return replace(plan, entrants=entrants)


class _LiveTable:
    """The runs and how they come on; in a log, a line for each that is done."""

    def __init__(self, plan: "Comparison") -> None:
        self._console = Console()
        self._states: dict[Job, tuple[str, float | None]] = {}
        self._many = len(plan.data) > 1, len(plan.seeds) > 1
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shows = self._console.is_terminal

    def __enter__(self) -> Self:
        if self._shows:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shows:
            self._live.stop()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        if self._shows:
            of = "" if total is None else f" of {total}"
            self._live.update(Text(f"simulating flow {done:g}{of}"), refresh=True)

    def update(self, job: "Job", state: str, nmse: float | None = None) -> None:
        self._states[job] = (state, nmse)
        if self._shows:
            self._live.update(self._table(), refresh=True)
        elif state == "done":
            say(self._console, f"{job.data} {job.entrant} seed {job.seed}: nmse {_digits(nmse)}")

    def _table(self) -> Table:
        datasets, seeds = self._many
        table = Table("model", *(["data"] if datasets else []), *(["seed"] if seeds else []))
        table.add_column("state")
        table.add_column("NMSE", justify="right")
        for job, (state, nmse) in self._states.items():
            style = {"waiting": "dim", "done": "green", "failed": "red"}.get(state, "bold")
            extra = [job.data] * datasets + [str(job.seed)] * seeds
            shown = _digits(nmse) if state == "done" else ""
            table.add_row(job.entrant, *extra, Text(state, style), shown)
        return table


def _show_ranking(
    console: Console, name: str, facts: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    table = Table(title=f"{name}: next frame, {facts['test_frames']} test frames")
    for column in ("rank", "model", "NMSE", "95 % interval", "skill", "parameters"):
        justify: Literal["left", "right"] = "left" if column == "model" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    own = [r for r in results["records"] if r["data"] == name and r["space"] == "physical"]
    for row in facts["ranking"]:
        model = row["model"]
        mine = [r for r in own if r["model"] == model and r["component"] == "all"]
        nmse, skill = ([r for r in mine if r["metric"] == m] for m in ("nmse", "skill"))
        known = all(r["low"] is not None for r in nmse)
        low, high = (
            pick(r[end] or 0.0 for r in nmse) for pick, end in ((min, "low"), (max, "high"))
        )
        span = f"{_digits(low)} to {_digits(high)}" if known else "–"
        skills = [r["value"] for r in skill if r["value"] is not None]
        own_runs = [r for r in results["runs"] if (r["data"], r["model"]) == (name, model)]
        run = next(r for r in own_runs if "failed" not in r)
        table.add_row(
            str(row["rank"]),
            model,
            _digits(row["nmse"]),
            span,
            _digits(sum(skills) / len(skills) if skills else None),
            f"{run['cost']['parameters']:,}",
        )
    console.print(table)
    say(console, f"Intervals: {facts['intervals']}. Skill: 1 - error / error of persistence.")


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
        table.add_row(Text(name), *(_digits(values.get((metric, c))) for c in components))
    return table


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
