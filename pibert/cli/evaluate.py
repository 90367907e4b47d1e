"""``pibert evaluate``: one run, scored."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pibert.cli.options import Json, SourceOptions, with_source
from pibert.cli.terminal import NotePrinter, digits, leads_shown, say, show_json
from pibert.notes import Note, Notes, collecting

if TYPE_CHECKING:
    from pibert.evaluation.scores import Scores
    from pibert.experiments.experiment import DataConfig
    from pibert.experiments.flows import Flows

_SHARES = ("skill", "correlation", "diverged")
_SAME = "lmae"
"""The paper's name for mae: in the files, but not shown twice."""


@with_source
def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Score this run; with --data any model folder, or the name of a shipped model.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Score the model on all of these flows. Default: the test split of the run.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the scores to this folder. Default: RUN/evaluation; with --data "
            "RUN/evaluation-FILE; for a shipped model NAME-evaluation-FILE.",
            show_default=False,
        ),
    ] = None,
    rollout: Annotated[
        int, typer.Option(help="Also score rollouts of this many frames; 0: none.")
    ] = 0,
    free_run: Annotated[
        int,
        typer.Option(
            help="Run up to this many frames from the start of every flow and compare the "
            "statistics; 0: no such runs."
        ),
    ] = 0,
    as_json: Json = False,
    *,
    source: SourceOptions | None,
) -> None:
    """Score one run on test data: errors of the next frame, and skill against persistence.

    With --rollout, it also scores rollouts by lead time, from starts spread over the data. With
    --free-run, it also compares the statistics of a model that runs on its own: mean flow, Reynolds
    stresses, spectra, frequency.

    Example: pibert evaluate runs/demo --data other.h5 --rollout 20

    Example: pibert evaluate cylinder-base --data new.h5 --out scores

    Example: pibert evaluate runs/demo --data other.npz --unit m/s --dt 0.01
    """
    from pibert.evaluation.scores import read_card
    from pibert.experiments.calibration import as_trained, in_units_of, same_as_trained
    from pibert.experiments.evaluation import RolloutPlan, add_cost
    from pibert.experiments.evaluation import evaluate as score
    from pibert.experiments.flows import prepare, prepare_test
    from pibert.experiments.run_folder import unfinished
    from pibert.inference import load
    from pibert.inference.model_file import find_model, shipped_models

    folder = find_model(run)
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{run}: expected a run folder, a model folder or the name of a shipped model, found a "
            "file; name its folder"
        )
    notes = NotePrinter()
    if text := unfinished(folder):
        notes.add(Note("unfinished-run", text))
    with collecting(notes):
        if source is None:
            flows = prepare(_data_of(folder))
        else:
            predictor = load(folder)
            plan = as_trained(predictor, source.path, source.stated())
            flows = prepare_test(plan, predictor.spec, predictor.normalizer)
            flows = in_units_of(flows, predictor.spec)
            if what := same_as_trained(predictor, flows):
                text = (
                    "these flows belong to the data set that the model was trained on (the same "
                    f"{what}): it may have seen them"
                )
                remedy = "without --data a run is scored on its test split alone"
                notes.add(Note("training-data", text, remedy))
            _note_resampling(flows, notes)
    if out is None:
        # Not beside the weights: those scores belong to the comparison that the run is part of.
        name = "evaluation" if data is None else f"evaluation-{_name_of(data)}"
        own = folder not in shipped_models().values()
        out = folder / name if own else Path(f"{folder.name}-{name}")
    with collecting(notes), _folder(out):
        rollouts = RolloutPlan(steps=rollout, free_run=free_run)
        scores = score(folder, flows, into=out, rollout=rollouts)
    if empty := int(scores.arrays["errors/prediction"].isnan().sum()):
        text = f"{empty} of the frames hold no flow at known points and are not scored"
        notes.add(Note("empty-frames", text))
    add_cost(folder, out, "cpu")
    card = read_card(out)
    _note_skill(card, notes)
    rolled = _rollouts(scores) if rollout else None
    if as_json:
        kept = {key: card[key] for key in ("entries", "values", "cost", "data")}
        runs = card.get("free_run")
        written = [str(out / "scores.json")]
        return show_json({**kept, "rollout": rolled, "free_run": runs, "written": written})
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from recorded ones")
    if filled := card["data"]["filled_points"]:
        say(
            console,
            f"{filled:,} points of these frames were filled, not measured; they are not scored",
        )
    console.print(_pointwise(card))
    say(
        console,
        "lpcc: correlation of prediction and truth. skill: 1 is perfect, 0 as good as repeating "
        "the last frame. mae is the lmae of the paper.",
    )
    if rolled is not None:
        _show_rollouts(console, rolled)
    if "free_run" in card:
        _show_free_runs(console, card["free_run"])
    say(console, f"All numbers: {out / 'scores.json'}")


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Create the folder of the scores, and remove it again if there are none."""
    there = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if not there:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise


def _name_of(data: Path) -> str:
    """For a folder: of a file, a folder or a pattern."""
    return re.sub(r"[^\w.-]+", "-", data.resolve().stem).strip("-") or "data"


def _data_of(folder: Path) -> "DataConfig":
    """The data that the run was trained on."""
    from pibert.config import parse
    from pibert.experiments.experiment import Experiment
    from pibert.experiments.run_folder import read_record

    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder.name}: expected a run folder with config.json, found none; the test split is "
            "recorded there; any model can be scored on other flows: --data FILE"
        )
    return parse(Experiment, read_record(path)["experiment"], str(path)).data


def _note_resampling(flows: "Flows", notes: Notes) -> None:
    """Resampled true frames are smoother, or interpolated."""
    for trajectory in flows.trajectories:
        if found := trajectory.local.get("resize"):
            old, new = (" x ".join(map(str, found[end])) for end in ("from", "to"))
            text = f"the true frames are on {new} points, resampled from {old}"
            notes.add(Note("resampled-truth", text))


def _note_skill(card: Mapping[str, Any], notes: Notes) -> None:
    """A model that is worse than no model is no use on these flows."""
    entries, values = (card[key]["physical/pointwise"] for key in ("entries", "values"))
    for entry, value in zip(entries, values, strict=True):
        if (entry["metric"], entry["component"]) == ("skill", "all") and (value or 0) < -0.01:
            text = f"the skill is {digits(value)}: repeating the last frame has a smaller error"
            remedy = "train the model longer, or on flows like these; check units and time step"
            notes.add(Note("negative-skill", text, remedy))


def _pointwise(card: Mapping[str, Any]) -> Table:
    """Metrics by component; a unit stands with the metric, or where they differ with the values."""
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
    for metric in dict.fromkeys(metric for metric, _ in values if metric != _SAME):
        own = {c: units[metric, c] for c in components if (metric, c) in units}
        common = own[components[0]] if len(set(own.values())) == 1 else "1"
        name = metric if common == "1" else f"{metric} [{common}]"
        cells = []
        for component in components:
            unit = own.get(component, "1") if common == "1" else "1"
            number = digits(values.get((metric, component)))
            cells.append(number if unit == "1" else f"{number} {unit}")
        table.add_row(Text(name), *(Text(cell) for cell in cells))
    return table


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
    wanted = leads_shown(rolled["steps"])
    first = next(iter(rolled["by_step"].values()))
    # The RMSE, which has a unit, is in the JSON: the table would not fit a terminal.
    metrics = [metric for metric, values in first.items() if "all" in values and metric != "rmse"]
    table = Table("step", *(metric.replace("_", " ") for metric in metrics))
    for step, found in rolled["by_step"].items():
        if step in wanted:
            values = {metric: found[metric]["all"] for metric in metrics}
            # Shares in few digits, for the same reason.
            table.add_row(
                str(step),
                *(f"{v:.3f}" if m in _SHARES else digits(v) for m, v in values.items()),
            )
    say(console, f"Rollouts from {rolled['starts']} starts, all channels together:")
    console.print(table)
    stable = digits(rolled["summary"]["stable_horizon"])
    say(
        console,
        f"Stable horizon: {stable} of {rolled['steps']} steps on average (squared error below half "
        "of the variance in time).",
    )


def _show_free_runs(console: Console, runs: Mapping[str, Any]) -> None:
    """The statistics of free runs beside the sampling error of the true flow."""
    table = Table("statistic", "model", "truth against itself")
    for entry, *values in zip(runs["entries"], runs["values"], runs["sampling"], strict=True):
        name = entry["metric"].replace("_", " ")
        unit = "" if entry["unit"] == "1" else f" [{entry['unit']}]"
        model, truth = ("-" if value is None else digits(value) for value in values)
        of_truth = entry["metric"] not in ("survival", "diverged")
        table.add_row(Text(name + unit), Text(model), Text(truth if of_truth else ""))
    ends = sorted({min(runs["frames"]), max(runs["frames"])})
    size = " to ".join(map(str, ends))
    say(console, f"Statistics of {len(runs['frames'])} free runs of {size} frames:")
    console.print(table)
    say(
        console,
        "A perfect model has errors of 0 and ratios of 1, up to the last column: how far the two "
        "halves of the true flow differ. - : not defined, or a run diverged.",
    )
