"""``pibert compare``: models under one protocol, and who comes first."""

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

from pibert.cli.completion import complete_comparison, complete_entrants
from pibert.cli.options import Json
from pibert.cli.terminal import digits, say, show_json

if TYPE_CHECKING:
    from pibert.comparison import Comparison, Job, Trial


def compare(
    out: Annotated[
        Path,
        typer.Option(help="Folder of the comparison. What is done there is not done again."),
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            help="demo (if nothing is given), tour, quick; for a GPU: cylinder, fsi, jet.",
            show_default=False,
            autocompletion=complete_comparison,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file instead of a preset.", show_default=False)
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Only some entrants: pibert,unet,persistence.",
            show_default=False,
            autocompletion=complete_entrants,
        ),
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
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose learning rate and optimiser of each model on the validation part first, "
            "with equal trials for all (--set tuning.budget=0.5, tuning.learning_rates=[...]).",
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Runs at a time, on GPUs of their own where there are enough.")
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a setting of the plan: --set samples=20000 (epochs follow from it).",
            metavar="NAME=VALUE",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train models under one protocol, score them once on test data, and rank them.

    All see the same number of samples; the epoch is chosen on the validation part alone.

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
    else:
        plan = with_overrides(find_comparison(preset or "demo"), changes)
    plan = _chosen(plan, models, seeds, runs or [])
    if tune:
        plan = replace(plan, tuning=plan.tuning or Tuning())
    if workers < 1:
        raise ValueError(f"expected at least 1 worker, found {workers}")
    known = refuse_other(plan, out)["entrants"]
    console = Console(stderr=as_json)
    with _LiveTable(plan, console) as table:
        failed = carry_out(plan, out, table, workers=workers)
    results = gather(plan, out, failed, shlex.join(["pibert", *sys.argv[1:]]))
    left_out = [name for name in known if name not in plan.entrants]
    if as_json:
        show_json(_summary(results, out, failed, left_out))
    else:
        _show(console, results, out, left_out)
    for job, reason in failed.items():
        say(console, f"{job.entrant} (seed {job.seed}, {job.data}) failed: {reason}", "red")
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
            {"data": job.data, "model": job.entrant, "seed": job.seed, "reason": reason}
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
        name = f"{job.data} {job.entrant} seed {job.seed}"
        if state.startswith("training "):  # it has begun to step
            self._tell_once((job, "training"), f"{name}: training")
        elif nmse is not None:
            self._tell_once(job, f"{name}: nmse {digits(nmse)}")

    def update_trial(self, trial: "Trial", state: str, error: float | None = None) -> None:
        self._trials.setdefault((trial.data, trial.entrant), {})[trial] = state
        if self._shows:
            self._live.update(self._table(), refresh=True)
            return
        name = f"{trial.data} {trial.entrant} tuning, {trial.setting}"
        if error is not None:
            self._tell_once(trial, f"{name}: validation error {digits(error)}")
        elif state == "diverged":
            self._tell_once(trial, f"{name}: diverged")

    def _state(self, job: "Job") -> str:
        """Of a run that waits for its trials, how many of them are done."""
        state, _ = self._states[job]
        trials = self._trials.get((job.data, job.entrant), {})
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
            table.add_row(job.entrant, *extra, Text(state, style), shown)
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
    """What each model was tuned to, and whether a better rate may lie beyond those tried."""
    found = []
    for own in records:
        if chosen := own["chosen"]:
            edge = f" (the {own['edge']} rate tried)" if own["edge"] else ""
            found.append(
                f"{own['model']} {chosen['optimizer']} at {chosen['learning_rate']:g}{edge}"
            )
    if found:
        say(
            console,
            f"Tuned on the validation part of {records[0]['tuned_on']}: {', '.join(found)}.",
        )
