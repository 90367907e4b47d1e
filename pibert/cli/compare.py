"""``pibert compare`` and ``pibert report``: rank models under one protocol; the page of it."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console

from pibert.cli.options import Json, complete_candidates, complete_comparison, option
from pibert.cli.terminal import say, show_json, show_table

if TYPE_CHECKING:
    from pibert.comparison import Comparison, Job

_NARROW: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
"""Tables that fit eighty columns."""
PAGES = ("report.html", "tables.md", "tables.tex")
"""What a report writes beside the figures."""


def compare(
    out: Annotated[
        Path, option("Write the comparison to this folder; finished runs there are reused.")
    ],
    preset: Annotated[
        str | None,
        option(
            "Use a preset: demo (the default), tour or quick; on a GPU also cylinder, fsi, jet, "
            "turbulence, euler, reaction-diffusion, apebench-kolmogorov or fno-navier-stokes.",
            autocompletion=complete_comparison,
        ),
    ] = None,
    config: Annotated[
        Path | None, option("Read the plan from a TOML file instead of a preset.")
    ] = None,
    models: Annotated[
        str | None,
        option(
            "Compare only these models, such as pibert,unet,persistence. Default: all of the plan.",
            autocompletion=complete_candidates,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        option("Train each model with these seeds, such as 0,1,2. Default: those of the plan."),
    ] = None,
    runs: Annotated[
        list[str] | None,
        option(
            "Add a finished run on the same data as a further model. Repeatable.",
            "--run",
            metavar="NAME=FOLDER",
        ),
    ] = None,
    tune: Annotated[
        bool,
        option(
            "First choose the learning rate of each model on the validation split, with equal "
            "trials for all, by default with Muon. Also the optimiser with --set "
            r"tuning.optimizers=\[adamw,muon]; more settings: tuning.learning_rates, "
            "tuning.budget.",
            "--tune",
        ),
    ] = False,
    rates: Annotated[
        Path | None,
        option(
            "Use the learning rates and optimisers that a tuned comparison chose, instead of "
            "tuning again.",
            metavar="FOLDER",
        ),
    ] = None,
    workers: Annotated[
        int,
        option("Train this many models at a time, each on its own GPU if there are enough.", min=1),
    ] = 1,
    settings: Annotated[
        list[str] | None,
        option(
            "Change a setting of the plan, such as --set samples=20000 (the number of epochs "
            "follows from it). Repeatable.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    with_report: Annotated[
        bool, option("Write the report page at the end, as pibert report does.", "--report")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train models under one protocol and rank them.

    All models see the same number of samples. The best epoch is chosen on the validation split,
    and the test data are scored once.

    Example: pibert compare --preset demo --out outputs/comparison
    """
    from pibert.comparison import (
        FILES,
        Tuning,
        carry_out,
        find_comparison,
        gather,
        load_comparison,
        read_results,
        refuse_other,
        with_chosen,
    )
    from pibert.comparison.live import LiveTable
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
    plan = _select(plan, models, seeds, runs or [])
    if rates is not None:
        plan = with_chosen(plan, read_results(rates), str(rates))
    known = refuse_other(plan, out)["candidates"]
    console = Console(stderr=as_json)
    with LiveTable(plan, console) as table:
        failed = carry_out(plan, out, table, workers=workers)
    results = gather(plan, out, failed, shlex.join(["pibert", *sys.argv[1:]]))
    left_out = [name for name in known if name not in plan.candidates]
    written = [str(out / name) for name in FILES]
    if with_report:
        from pibert.comparison.page import write_page

        write_page(out)
        written += [str(out / name) for name in PAGES]
    if as_json:
        show_json(_summary(results, failed, left_out, written))
    else:
        for name, facts in results["data"].items():
            _show_ranking(console, name, facts, results)
            _show_tuning(console, [row for row in results["tuning"] if row["data"] == name])
        say(console, f"Results: {', '.join(written[: len(FILES)])}")
        if left_out:
            say(console, f"They leave out {', '.join(left_out)}: add them to --models to have them")
        see = f"See them: pibert report {shlex.quote(str(out))}"
        say(console, f"Report: {out / PAGES[0]}" if with_report else see)
    for job, reason in failed.items():
        say(console, f"{job.candidate} (seed {job.seed}, {job.data}) failed: {reason}", "red")
    if failed:
        raise typer.Exit(1)


def _summary(
    results: Mapping[str, Any],
    failed: "Mapping[Job, str]",
    left_out: list[str],
    written: list[str],
) -> dict[str, Any]:
    def pick(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
        return {key: row[key] for key in keys}

    return {
        "data": {
            name: pick(facts, "test_frames", "intervals", "ranking")
            for name, facts in results["data"].items()
        },
        "tuning": [
            pick(row, "data", "model", "tuned_on", "chosen", "edge") for row in results["tuning"]
        ],
        "left_out": left_out,
        "failed": [job.labels | {"reason": reason} for job, reason in failed.items()],
        "written": written,
    }


def _select(
    plan: "Comparison", models: str | None, seeds: str | None, runs: list[str]
) -> "Comparison":
    """Return the plan with some of its candidates, other seeds, and finished runs."""
    from pibert.comparison import Candidate

    candidates = dict(plan.candidates)
    if models is not None:
        names = [name.strip() for name in models.split(",") if name.strip()]
        if unknown := [name for name in names if name not in candidates]:
            raise ValueError(
                f"unknown candidates {', '.join(unknown)}; choose from: {', '.join(candidates)}"
            )
        # Skill and the choice of frames need the reference.
        names += [plan.reference, *([plan.tested] if plan.tested else [])]
        candidates = {n: c for n, c in candidates.items() if n in names}
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


def _show_ranking(
    console: Console, name: str, facts: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    from pibert.comparison.results import RANKING_COLUMNS, ranking_table
    from pibert.report.comparison.results import COARSE_SOLVER, describe_solver

    title = f"{name}: next frame, {facts['test_frames']} test frames"
    rows = ranking_table(results, name)
    show_table(console, RANKING_COLUMNS, rows, numbers=True, title=title, **_NARROW)
    say(console, f"Intervals: {facts['intervals']}. Skill: 1 - error / error of persistence.")
    if "free_run" in facts:
        _show_free_runs(console, name, facts, results["records"])
    if solver := facts.get("coarse_solver"):
        say(console, f"{COARSE_SOLVER}: {describe_solver(solver)}.")


def _show_free_runs(
    console: Console, name: str, facts: Mapping[str, Any], records: list[Mapping[str, Any]]
) -> None:
    """Print the main statistics of free runs, and the true flow's own sampling error."""
    from pibert.report.comparison.results import COARSE_SOLVER

    runs = facts["free_run"]
    title = f"{name}: {runs['runs']} free runs of up to {max(runs['frames'])} frames"
    columns = ("mean_error", "stress_error", "energy_ratio", "strouhal_error", "survival")
    names = ("model", *(column.replace("_", "\n") for column in columns), "diverged")
    rows = []
    others = (*([COARSE_SOLVER] if "coarse_solver" in facts else []), "truth")
    for model in (*(row["model"] for row in facts["ranking"]), *others):
        cells = []
        for metric in (*columns, "diverged"):
            key = {"data": name, "model": model, "metric": f"free_run_{metric}"}
            found = [r["value"] for r in records if key.items() <= r.items()]
            known = [value for value in found if value is not None]
            mean = f"{sum(known) / len(known):.3g}" if len(known) == len(found) > 0 else "–"
            cells.append(mean)
        if model == "truth":
            model, cells[-2:] = "truth against itself", ["", ""]
        rows.append((model, *cells))
    show_table(console, names, rows, numbers=True, title=title, **_NARROW)
    say(console, "Survival: frames before a run diverged. –: not defined, or a run diverged.")


def _show_tuning(console: Console, rows: list[Mapping[str, Any]]) -> None:
    """Print what was tried and chosen for each model, and whether that is the end of the range."""
    choices = []
    for row in rows:
        if chosen := row["chosen"]:
            edge = f" (the {row['edge']} rate tried)" if row["edge"] else ""
            setting = f"{chosen['optimizer']} at {chosen['learning_rate']:g}"
            choices.append(f"{row['model']} {setting}{edge}")
    if choices:
        tried: dict[str, list[str]] = {}
        for trial in rows[0]["trials"]:
            tried.setdefault(trial["optimizer"], []).append(f"{trial['learning_rate']:g}")
        rates = "; ".join(f"{name} at {', '.join(values)}" for name, values in tried.items())
        say(console, f"Tried for each model: {rates}.")
        where = f"Chosen on the validation split of {rows[0]['tuned_on']}"
        say(console, f"{where}: {', '.join(choices)}.")


def report(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Read the comparison from this folder.")
    ],
    figures: Annotated[
        str | None,
        option(
            "Also write each figure on its own, to the folder figures, in this format.",
            metavar="pdf|svg|png",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report page of a comparison.

    One page with tables and figures, and tables to paste (tables.md, tables.tex).

    Example: pibert report outputs/comparison

    Example: pibert report outputs/comparison --figures pdf
    """
    from pibert.comparison.page import write_page

    page = write_page(out, figures)
    files = sorted((out / "figures").glob(f"*.{figures}")) if figures else []
    if as_json:
        written = [*(out / name for name in PAGES), *files]
        return show_json({"written": [str(file) for file in written]})
    say(Console(), f"Report: {page}")
    if figures:
        say(Console(), f"Figures: {out / 'figures'}, {len(files)} .{figures} files")
