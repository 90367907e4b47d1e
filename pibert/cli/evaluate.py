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

from pibert.cli.assumptions import Remark
from pibert.cli.flow_input import Remarks, noting_warnings
from pibert.cli.options import Json, SourceOptions, with_source
from pibert.cli.prediction_scores import leads_shown
from pibert.cli.terminal import digits, say, show_json

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
            help="A run folder; with --data any model folder, or the name of a shipped model.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data to judge it on, all of them; without, the test part of its own.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the scores. If not given RUN/evaluation, with --data "
            "RUN/evaluation-FILE; NAME-evaluation-FILE here for a shipped model.",
            show_default=False,
        ),
    ] = None,
    rollout: Annotated[int, typer.Option(help="Frames of rollouts to judge; 0: none.")] = 0,
    as_json: Json = False,
    *,
    source: SourceOptions | None,
) -> None:
    """Score one run: errors of the next frame in physical units, and skill against persistence.

    With --rollout also by lead time, from starts spread over the data.

    Example: pibert evaluate runs/demo --data other.h5 --rollout 20

    Example: pibert evaluate cylinder-base --data new.h5 --out scores

    Example: pibert evaluate runs/demo --data other.npz --unit m/s --dt 0.01
    """
    from pibert.comparison.evaluation import add_cost
    from pibert.comparison.evaluation import evaluate as judge
    from pibert.comparison.plan import RolloutPlan
    from pibert.evaluation.scores import read_card
    from pibert.experiments.calibration import as_trained, in_units_of, same_as_trained
    from pibert.experiments.flows import prepare, prepare_test
    from pibert.experiments.progress import unfinished
    from pibert.predictor import load
    from pibert.predictor.shipped import find_model, shipped_models

    folder = find_model(run)
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{run}: expected a run folder, a model folder or the name of a shipped model, found a "
            "file; name its folder"
        )
    remark = Remarks()
    if text := unfinished(folder):
        remark(text)
    with noting_warnings(remark):
        if source is None:
            flows = prepare(_data_of(folder))
        else:
            predictor = load(folder)
            plan = as_trained(predictor, source.path, source.stated())
            flows = prepare_test(plan, predictor.spec, predictor.normalizer)
            flows = in_units_of(flows, predictor.spec)
            if what := same_as_trained(predictor, flows):
                remark(
                    f"these flows are of the data set that the model was trained on (the same "
                    f"{what}): it may have seen them; a run without --data is judged on its test "
                    "part alone"
                )
            _note_resampling(flows, remark)
    if out is None:
        # Not beside the weights: those scores belong to the comparison that the run is part of.
        name = "evaluation" if data is None else f"evaluation-{_name_of(data)}"
        own = folder not in shipped_models().values()
        out = folder / name if own else Path(f"{folder.name}-{name}")
    with noting_warnings(remark), _folder(out):
        scores = judge(folder, flows, into=out, rollout=RolloutPlan(steps=rollout))
    if empty := int(scores.arrays["errors/prediction"].isnan().sum()):
        remark(f"{empty} of the frames hold no flow at known points and count for nothing")
    add_cost(folder, out, "cpu")
    card = read_card(out)
    rolled = _rollouts(scores) if rollout else None
    if as_json:
        kept = {key: card[key] for key in ("entries", "values", "cost", "data")}
        return show_json({**kept, "rollout": rolled, "written": [str(out / "scores.json")]})
    console = Console()
    frames = card["data"]["test_frames"]
    say(console, f"{card['model']['name']}: {frames} frames, each predicted from true ones")
    if filled := card["data"]["filled_points"]:
        say(console, f"{filled:,} points of these frames were filled, not measured: not scored")
    console.print(_pointwise(card))
    say(
        console,
        "lpcc: correlation of prediction and truth. skill: 1 is perfect, 0 as good as repeating "
        "the last frame. mae is the lmae of the paper.",
    )
    if rolled is not None:
        _show_rollouts(console, rolled)
    say(console, f"All numbers: {out / 'scores.json'}")


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[None]:
    """The folder of the scores, made before the work and not left behind without any."""
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
    """What the run was trained and is judged on."""
    from pibert.config import parse
    from pibert.experiments.experiment import Experiment
    from pibert.experiments.record import read_record

    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder.name}: expected a run folder with config.json, found none; the test part is "
            "recorded there; any model can be judged on other flows: --data FILE"
        )
    return parse(Experiment, read_record(path)["experiment"], str(path)).data


def _note_resampling(flows: "Flows", remark: Remark) -> None:
    """Truth on other points than the recorded ones is smoother, or made up between them."""
    for trajectory in flows.trajectories:
        if found := trajectory.local.get("resize"):
            old, new = (" x ".join(map(str, found[end])) for end in ("from", "to"))
            remark(f"the truth is on {new} points, resampled from {old}")


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
        f"Stable horizon: {stable} of {rolled['steps']} steps in the mean (squared error below "
        "half of the variance in time).",
    )
