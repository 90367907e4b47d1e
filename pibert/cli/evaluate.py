"""``pibert evaluate``: one run, scored."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pibert.cli.options import Device, Json, SourceOptions, option, with_options
from pibert.cli.terminal import NotePrinter, digits, leads_shown, say, show_json, show_table
from pibert.notes import collecting

_SHARES = ("skill", "correlation")
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
    device: Device = "auto",
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
    from pibert.experiments.evaluation import RolloutPlan, score_model

    if data is None:
        source.refuse_without_data()
    rollouts = RolloutPlan(steps=rollout, free_run=free_run)
    with collecting(NotePrinter()):
        scores, out = score_model(
            run, data, source.as_settings(), into=out, rollout=rollouts, device=device
        )
    card, rolled, by_flow = scores.card, scores.rollouts, scores.card["by_flow"]
    if as_json:
        kept = {key: card[key] for key in ("entries", "values", "cost", "data")}
        written = [str(out / "scores.json")]
        free = card.get("free_run")
        covered = card.get("rollout_intervals")
        more = {"rollout": rolled, "rollout_intervals": covered, "free_run": free}
        more["structure"] = card.get("structure")
        return show_json({**kept, **more, "by_flow": by_flow, "written": written})
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from recorded ones")
    if filled := card["data"]["filled_points"]:
        say(
            console,
            f"{filled:,} points of these frames were filled, not measured; they are not scored",
        )
    state = card["data"]["spec"].get("state", [])
    show_table(console, *_pointwise_table(card, without=state))
    if state:
        say(console, "State of the structure:")
        show_table(console, *_pointwise_table(card, only=state))
    say(
        console,
        "lpcc: correlation of prediction and truth. skill: 1 is perfect, 0 as good as repeating "
        "the last frame. mae is the lmae of the paper.",
    )
    if len(by_flow["flows"]) > 1:
        _show_flows(console, by_flow)
    if rolled is not None:
        _show_rollouts(console, rolled)
    if "rollout_intervals" in card:
        _show_coverage(console, card["rollout_intervals"])
    if "free_run" in card:
        _show_free_runs(console, card["free_run"])
    if "structure" in card:
        from pibert.report.structure import write_response

        _show_structure(console, card["structure"])
        say(console, f"Response and displacements: {write_response(scores, out)}")
    say(console, f"All numbers: {out / 'scores.json'}")


def _pointwise_table(
    card: Mapping[str, Any], *, without: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Metrics by component; a common unit stands with the metric, others with the values."""
    entries, found = (card[key]["physical/pointwise"] for key in ("entries", "values"))
    values = {(e["metric"], e["component"]): v for e, v in zip(entries, found, strict=True)}
    units = {(e["metric"], e["component"]): e["unit"] for e in entries}
    components = [name for name in dict.fromkeys(c for _, c in units) if name not in without]
    components = list(only or components)
    rows = []
    for metric in dict.fromkeys(metric for metric, _ in units if metric != _ALIAS):
        shown = [units.get((metric, component), "1") for component in components]
        common = {units[key] for key in units if key[0] == metric and key[1] in components}
        name = metric
        if len(common) == 1 and common != {"1"}:
            name, shown = f"{metric} [{common.pop()}]", ["1"] * len(components)
        numbers = (digits(values.get((metric, component))) for component in components)
        cells = (n if u == "1" else f"{n} {u}" for n, u in zip(numbers, shown, strict=True))
        rows.append([name, *cells])
    return ["metric", *components], rows


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
    rows = []
    for n in shown[:: math.ceil(len(shown) / _MOST_FLOWS)]:
        row = found[kind][n]
        values = (row["parameters"].get(name) for name in names)
        marks = (" *" if name in row.get("outside", ()) else "" for name in names)
        cells = [digits(v) + mark for v, mark in zip(values, marks, strict=True)]
        cells += [digits(errors[metric][n]) for metric in ("nmse", "skill")]
        share = errors["squared_error_share"][n]
        first = row["name"] if kind == "flows" else str(row["flows"])
        rows.append((first, *cells, "-" if share is None else f"{share:.1%}"))
    say(console, f"Next frame of each {kind.removesuffix('s')}, all channels together:")
    show_table(console, (count, *names, "nmse", "skill", "share of error"), rows)
    if len(shown) > _MOST_FLOWS:
        say(console, f"Not all of the {len(shown)} are shown; scores.json has them.")
    if any(flow["outside"] for flow in found["flows"]):
        say(console, "*: outside the training range.")
    mean, median = (digits(found[f"nmse_flow_{name}"]) for name in ("mean", "median"))
    text = f"mean {mean}, median {median}."
    say(console, f"NMSE of single flows, each relative to its own energy: {text}")


def _show_rollouts(console: Console, rolled: Mapping[str, Any]) -> None:
    from pibert.data.wording import counted

    wanted = leads_shown(rolled["steps"])
    # The RMSE, which has a unit, is in the JSON: the table would not fit a terminal.
    hidden = ("rmse", "not_finite")
    metrics = [
        m for m, values in rolled["by_step"][1].items() if "all" in values and m not in hidden
    ]
    columns = ("step", *(metric.replace("_", " ") for metric in metrics))
    rows = []
    for step, scores in rolled["by_step"].items():
        if step in wanted:
            values = {metric: scores[metric]["all"] for metric in metrics}
            cells = (f"{v:.3f}" if m in _SHARES else digits(v) for m, v in values.items())
            rows.append((str(step), *cells))
    say(console, f"Rollouts from {counted(rolled['starts'], 'start')}, all channels together:")
    show_table(console, columns, rows)
    summary, steps = rolled["summary"], rolled["steps"]
    say(
        console,
        f"Stable horizon: {digits(summary['stable_horizon'])} of {steps} steps on average (squared "
        "error below half of the variance in time).",
    )
    if summary["diverged"]:
        say(
            console,
            f"Diverged: {summary['diverged']:.0%} of the rollouts leave the range of the flow; "
            f"on average they stay in it for {digits(summary['survival'])} of {steps} steps.",
        )


def _show_coverage(console: Console, scores: Mapping[str, Any]) -> None:
    """Print coverage and CRPS of the prediction intervals by lead time."""
    steps = sorted(leads_shown(scores["steps"]) & set(range(1, scores["steps"] + 1)))
    rows = [
        (
            f"{entry['metric']} {entry['component']}{_bracketed(entry['unit'])}",
            *(_short(scores["values"][step - 1][index]) for step in steps),
        )
        for index, entry in enumerate(scores["entries"])
    ]
    say(console, f"Prediction intervals of level {scores['level']:g} in rollouts, by step:")
    show_table(console, ("", *map(str, steps)), rows)


def _show_free_runs(console: Console, runs: Mapping[str, Any]) -> None:
    """Print the statistics of free runs beside the sampling error of the true flow."""
    from pibert.evaluation.statistics import LEAST_FRAMES

    rows = []
    none = [None] * len(runs["entries"])
    columns = (runs[name] for name in ("entries", "values", "sampling"))
    spans = (runs.get(f"{name}_intervals") or none for name in ("values", "sampling"))
    for entry, value, sampling, span, sampling_span in zip(*columns, *spans, strict=True):
        if value is None and sampling is None:
            continue
        name = entry["metric"].replace("_", " ")
        name += "" if entry["component"] == "all" else f", {entry['component']}"
        name += _bracketed(entry["unit"])
        of_truth = entry["metric"] not in ("survival", "diverged")
        truth = _with_interval(sampling, sampling_span) if of_truth else ""
        rows.append((name, _with_interval(value, span), truth))
    say(console, f"Statistics of {len(runs['frames'])} free runs of {_span(runs['frames'])}:")
    show_table(console, ("statistic", "model", "truth against itself"), rows)
    say(
        console,
        "A perfect model has errors of 0 and ratios of 1, up to the last column: how far two "
        "stretches of the true flow differ, each as long as a run. memory: correlation time at "
        "probes. psd: power spectrum at probes. - : not defined, or a run diverged.",
    )
    if max(runs["frames"]) < 2 * LEAST_FRAMES:
        say(
            console,
            f"The truth is not compared with itself: expected runs of {2 * LEAST_FRAMES} frames or "
            f"more, found {_span(runs['frames'])}.",
        )
    lost = [n for n, size in zip(runs["survived"], runs["frames"], strict=True) if n < size]
    if lost:
        say(console, f"Diverged: {len(lost)} of {len(runs['frames'])} runs, after {_span(lost)}.")
    method = runs["intervals"]
    known = not method.startswith("none")
    say(console, f"[]: 95 % intervals over {method}." if known else f"Intervals: {method}.")


def _bracketed(unit: str) -> str:
    return "" if unit == "1" else f" [{unit}]"


def _show_structure(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print amplitude, frequency, phase error and regime of every flow, beside the truth."""
    from pibert.evaluation.structure import PHASE_PERIODS
    from pibert.fields import MASS_RATIO, REDUCED_VELOCITY

    parameters = (REDUCED_VELOCITY, MASS_RATIO)
    stopped: list[str] = []
    texts: list[list[str]] = []
    for row in sorted(rows, key=lambda row: row["parameters"].get(REDUCED_VELOCITY, 0.0)):
        if row["stopped"]:
            stopped.append(f"{row['flow']} after {row['lasted']} of {row['frames']} frames")
            continue
        name = [row["flow"]] + [digits(row["parameters"].get(p)) for p in parameters]
        mine, theirs = row["predicted"], row["true"]
        cells = [_with_error(theirs[key], mine[key]) for key in ("amplitude", "frequency")]
        regimes = [str(one.get("regime") or "-") for one in (mine, theirs)]
        regime = regimes[0] if regimes[0] == regimes[1] else f"{regimes[0]} ({regimes[1]})"
        texts.append([*name, *cells, _short(row["errors"]["phase"]), regime])
    say(console, "Vibration of the body, rolled out from the start of each flow:")
    if stopped:
        say(console, f"Stopped: {'; '.join(stopped)}")
    if not texts:
        return
    columns = ("flow", "U*", "m*", "A/D, error", "f, error", "phase", "regime")
    show_table(console, columns, texts)
    say(
        console,
        f"U*: reduced velocity. m*: mass ratio. phase: its error in periods, after "
        f"{PHASE_PERIODS:g} of them; - : unknown, as the flow is too short or the body at rest.",
    )


def _with_error(true: float | None, predicted: float | None) -> str:
    """A true value and the relative error of the predicted one."""
    relative = "-" if not true or predicted is None else f"{100 * (predicted / true - 1):+.1f}%"
    return f"{_short(true)} {relative}"


def _short(value: float | None) -> str:
    """Three digits: tables of many columns must fit a terminal."""
    return "-" if value is None else f"{value:.3g}"


def _span(lengths: list[int]) -> str:
    return " to ".join(map(str, sorted({min(lengths), max(lengths)}))) + " frames"


def _with_interval(value: float | None, span: list[float] | None) -> str:
    if value is None:
        return "-"
    return digits(value) + ("" if span is None else f" [{digits(span[0])}, {digits(span[1])}]")
