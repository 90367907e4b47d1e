"""``pibert compare`` and ``pibert report``: rank models under one protocol; the page of it."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pibert.cli.completion import complete_candidates, complete_comparison
from pibert.cli.options import Json
from pibert.cli.terminal import digits, say, show_json

if TYPE_CHECKING:
    from pibert.comparison import Comparison, Job, Trial


def compare(
    out: Annotated[
        Path,
        typer.Option(help="Write the comparison to this folder; finished runs there are reused."),
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            help="Use a preset: demo (the default), tour or quick; on a GPU also cylinder, fsi or "
            "jet.",
            show_default=False,
            autocompletion=complete_comparison,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Read the plan from a TOML file instead of a preset.", show_default=False
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Compare only these models, such as pibert,unet,persistence.",
            show_default=False,
            autocompletion=complete_candidates,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Train each model with these seeds, such as 0,1,2.", show_default=False),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            help="Add a finished run on the same data as a further model.",
            metavar="NAME=FOLDER",
            show_default=False,
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First choose the learning rate of each model on the validation split, with equal "
            "trials for all, by default with Muon. Also the optimiser with --set "
            "tuning.optimizers=[adamw,muon]; more settings: tuning.learning_rates, tuning.budget.",
        ),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            help="Train this many models at a time, each on a GPU of its own if there are enough."
        ),
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a setting of the plan, such as --set samples=20000 (the number of epochs "
            "follows from it).",
            metavar="NAME=VALUE",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train models under one protocol, score them once on test data, and rank them.

    All models see the same number of samples. The best epoch is chosen on the validation split.

    Example: pibert compare --preset demo --out outputs/comparison
    """
    from pibert.comparison import (
        Tuning,
        carry_out,
        find_comparison,
        gather,
        load_comparison,
        refuse_other,
    )
    from pibert.config import with_overrides

    changes = tuple(settings or [])
    if config is not None and preset is not None:
        raise ValueError(
            f"expected a preset or a file, found both: --preset {preset} and --config {config}; "
            "leave one out"
        )
    if config is not None:
        plan = load_comparison(config, changes)
        plan = replace(plan, tuning=plan.tuning or (Tuning() if tune else None))
    else:
        plan = with_overrides(find_comparison(preset or "demo", tune=tune), changes)
    plan = _chosen(plan, models, seeds, runs or [])
    if workers < 1:
        raise ValueError(f"expected at least 1 worker, found {workers}")
    known = refuse_other(plan, out)["candidates"]
    console = Console(stderr=as_json)
    with _LiveTable(plan, console) as table:
        failed = carry_out(plan, out, table, workers=workers)
    results = gather(plan, out, failed, shlex.join(["pibert", *sys.argv[1:]]))
    left_out = [name for name in known if name not in plan.candidates]
    if as_json:
        show_json(_summary(results, out, failed, left_out))
    else:
        _show(console, results, out, left_out)
    for job, reason in failed.items():
        say(console, f"{job.candidate} (seed {job.seed}, {job.data}) failed: {reason}", "red")
    if failed:
        raise typer.Exit(1)


def _summary(
    results: Mapping[str, Any], out: Path, failed: "Mapping[Job, str]", left_out: list[str]
) -> dict[str, Any]:
    """What scripts want first; the whole is in the files."""
    from pibert.comparison import FILES

    kept = ("test_frames", "intervals", "ranking")
    return {
        "data": {name: {k: facts[k] for k in kept} for name, facts in results["data"].items()},
        "tuning": [
            {key: own[key] for key in ("data", "model", "tuned_on", "chosen", "edge")}
            for own in results["tuning"]
        ],
        "left_out": left_out,
        "failed": [
            {"data": job.data, "model": job.candidate, "seed": job.seed, "reason": reason}
            for job, reason in failed.items()
        ],
        "written": [str(out / name) for name in FILES],
    }


def _show(console: Console, results: Mapping[str, Any], out: Path, left_out: list[str]) -> None:
    from pibert.comparison import FILES

    for name, facts in results["data"].items():
        _show_ranking(console, name, facts, results)
        _show_tuning(console, [own for own in results["tuning"] if own["data"] == name])
    say(console, f"Results: {', '.join(str(out / name) for name in FILES)}")
    if left_out:
        say(console, f"They leave out {', '.join(left_out)}: add them to --models to have them in")
    say(console, f"See them: pibert report {shlex.quote(str(out))}")


def _chosen(
    plan: "Comparison", models: str | None, seeds: str | None, runs: list[str]
) -> "Comparison":
    """The plan with some of its candidates, other seeds, and finished runs."""
    from pibert.comparison import Candidate

    candidates = dict(plan.candidates)
    if models is not None:
        names = [name.strip() for name in models.split(",") if name.strip()]
        unknown = [name for name in names if name not in candidates]
        if unknown:
            raise ValueError(
                f"unknown candidates {', '.join(unknown)}; choose from: {', '.join(candidates)}"
            )
        # Skill and the choice of frames need the reference.
        candidates = {n: e for n, e in candidates.items() if n in (*names, plan.reference)}
    for text in runs:
        name, sign, folder = text.partition("=")
        if not sign or not name or not folder:
            raise ValueError(f"expected NAME=FOLDER after --run, found {text!r}")
        candidates[name] = Candidate(run=str(Path(folder).resolve()))
    if seeds is not None:
        try:
            plan = replace(plan, seeds=tuple(int(seed) for seed in seeds.split(",")))
        except ValueError:
            raise ValueError(f"expected seeds such as 0,1,2, found {seeds!r}") from None
    return replace(plan, candidates=candidates)


class _LiveTable:
    """The runs and how they come on; in a log, a line for each that is done."""

    def __init__(self, plan: "Comparison", console: Console) -> None:
        self._console = console
        self._told: set[object] = set()
        self._states: dict[Job, tuple[str, float | None]] = {}
        self._trials: dict[tuple[str, str], dict[Trial, str]] = {}
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

    def _tell_once(self, key: object, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            say(self._console, text)
            self._console.file.flush()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        if not self._shows:
            self._tell_once("simulated", "simulating flows (kept in the cache)")
        else:
            of = "" if total is None else f" of {total}"
            self._live.update(Text(f"simulating flow {done:g}{of}"), refresh=True)

    def update(self, job: "Job", state: str, nmse: float | None = None) -> None:
        self._states[job] = (state, nmse)
        if self._shows:
            self._live.update(self._table(), refresh=True)
            return
        name = f"{job.data} {job.candidate} seed {job.seed}"
        if state.startswith("training "):  # it has begun to step
            self._tell_once((job, "training"), f"{name}: training")
        elif nmse is not None:
            self._tell_once(job, f"{name}: nmse {digits(nmse)}")

    def update_trial(self, trial: "Trial", state: str, error: float | None = None) -> None:
        self._trials.setdefault((trial.data, trial.candidate), {})[trial] = state
        if self._shows:
            self._live.update(self._table(), refresh=True)
            return
        name = f"{trial.data} {trial.candidate} tuning, {trial.setting}"
        if error is not None:
            self._tell_once(trial, f"{name}: validation error {digits(error)}")
        elif state == "diverged":
            self._tell_once(trial, f"{name}: diverged")

    def _state(self, job: "Job") -> str:
        """Of a run that waits for its trials, how many of them are done."""
        state, _ = self._states[job]
        trials = self._trials.get((job.data, job.candidate), {})
        done = sum(own in ("done", "diverged", "failed") for own in trials.values())
        if state != "waiting" or done == len(trials):
            return state
        running = [own for own in trials.values() if own.startswith("training")]
        return ", ".join([f"tuning {done} of {len(trials)}", *running[:1]])

    def _table(self) -> Table:
        datasets, seeds = self._many
        table = Table("model", *(["data"] if datasets else []), *(["seed"] if seeds else []))
        table.add_column("state")
        table.add_column("NMSE", justify="right")
        for job, (_, nmse) in self._states.items():
            state = self._state(job)
            style = {"waiting": "dim", "done": "green", "failed": "red"}.get(state, "bold")
            extra = [job.data] * datasets + [str(job.seed)] * seeds
            shown = "" if nmse is None else digits(nmse)
            table.add_row(job.candidate, *extra, Text(state, style), shown)
        return table


def _show_ranking(
    console: Console, name: str, facts: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    table = Table(
        title=f"{name}: next frame, {facts['test_frames']} test frames",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # eighty columns are few
        pad_edge=False,
    )
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
        span = f"{low:.3g} to {high:.3g}" if known else "–"
        skills = [r["value"] for r in skill if r["value"] is not None]
        own_runs = [r for r in results["runs"] if (r["data"], r["model"]) == (name, model)]
        run = next(r for r in own_runs if "failed" not in r)
        table.add_row(
            str(row["rank"]),
            model,
            f"{row['nmse']:.3g}",
            span,
            digits(sum(skills) / len(skills) if skills else None),
            f"{run['cost']['parameters']:,}",
        )
    console.print(table)
    say(console, f"Intervals: {facts['intervals']}. Skill: 1 - error / error of persistence.")


def _show_tuning(console: Console, records: list[Mapping[str, Any]]) -> None:
    """What was tried and chosen for each model, and whether a better rate may lie beyond."""
    found = []
    for own in records:
        if chosen := own["chosen"]:
            edge = f" (the {own['edge']} rate tried)" if own["edge"] else ""
            found.append(
                f"{own['model']} {chosen['optimizer']} at {chosen['learning_rate']:g}{edge}"
            )
    if found:
        tried: dict[str, list[str]] = {}
        for trial in records[0]["trials"]:
            tried.setdefault(trial["optimizer"], []).append(f"{trial['learning_rate']:g}")
        rates = "; ".join(f"{name} at {', '.join(own)}" for name, own in tried.items())
        say(console, f"Tried for each model: {rates}.")
        where = f"Chosen on the validation split of {records[0]['tuned_on']}"
        say(console, f"{where}: {', '.join(found)}.")


def report(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Read the comparison from this folder.")
    ],
    as_json: Json = False,
) -> None:
    """Write the report of a comparison: one page with tables and figures, and tables to paste.

    Example: pibert report outputs/comparison
    """
    from pibert.comparison import read_results
    from pibert.evaluation.scores import read_scores
    from pibert.report.comparison.page import write_report
    from pibert.report.comparison.results import DatasetResults

    results = read_results(out)
    datasets = []
    for name in results["data"]:
        runs = [r for r in results["runs"] if r["data"] == name and "failed" not in r]
        scores = {(r["model"], r["seed"]): read_scores(out / r["folder"]) for r in runs}
        for r in runs:
            if scores[r["model"], r["seed"]].card["identity"] != r["identity"]:
                raise ValueError(
                    f"{out / r['folder']} was scored again after the results were collected; "
                    "run the comparison again to collect them"
                )
        datasets.append(DatasetResults(name, results, scores))
    page = write_report(out, results, datasets)
    if as_json:
        return show_json({"written": [str(page), str(out / "tables.md"), str(out / "tables.tex")]})
    say(Console(), f"Report: {page}")
