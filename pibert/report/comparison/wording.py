"""What a report says in words: who is ahead, by how much, how sure; and how it was measured.

All of it comes from records. What they do not tell is not said.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pibert.report.comparison.board import UNTRAINED, Board
from pibert.report.comparison.columns import Column, has_marks
from pibert.report.comparison.drawn import with_unit
from pibert.report.comparison.numbers import digits, integer

Facts = list[tuple[str, str]]
_PARTS = {"train": "training", "valid": "validation"}


def title(boards: Sequence[Board]) -> str:
    """Names the data sets and counts the models."""
    models = {model for board in boards for model in board.models}
    names = ", ".join(board.name for board in boards)
    return f"{len(models)} models on {names}" if boards else "A comparison without results"


def headline(board: Board) -> str:
    """The winner, what it is worth, and how sure that is."""
    return " ".join((_winner(board), *_against_persistence(board), _certainty(board)))


def verdict(board: Board) -> str:
    """Who wins, by how much, how sure: the honest paragraph."""
    said = [
        _winner(board),
        *_against_persistence(board),
        *_runner_up(board),
        *_first_trained(board),
        *_place_of_pibert(board),
        _certainty(board),
    ]
    return " ".join(said)


def _winner(board: Board) -> str:
    best, frames = board.models[0], integer(board.facts["test_frames"])
    return (
        f"On {board.name}, over {frames} test frames, {best} predicts the next frame best of "
        f"{len(board.models)} models: NMSE {_error(board, best)}."
    )


def _error(board: Board, model: str) -> str:
    value, column = board.value(model, "nmse"), Column(label="", metric="nmse", interval=True)
    numbers = column.of(board)
    interval = numbers.notes.get(model, "") if numbers else ""
    return digits(value or 0.0) + (f" (95 % interval {interval})" if interval else "")


def _times(board: Board, model: str, other: str) -> str:
    """How many times as large the error of the other one is."""
    own, theirs = board.value(model, "nmse"), board.value(other, "nmse")
    return digits(theirs / own) if own and theirs else "∞"


def _against_persistence(board: Board) -> list[str]:
    best = board.models[0]
    if "persistence" not in board.models:
        return []
    if best == "persistence":
        return ["No model beats repeating the last frame."]
    error = digits(board.value("persistence", "nmse") or 0.0)
    times = _times(board, best, "persistence")
    beaten = board.models[board.models.index("persistence") + 1 :]
    lost = f"; {_listed(beaten)} {_are(beaten)} worse than that" if beaten else ""
    return [f"Repeating the last frame (persistence) gives {error}, {times} times as much{lost}."]


def _runner_up(board: Board) -> list[str]:
    if len(board.models) < 2:
        return []
    best, second = board.models[:2]
    said = f"Next comes {second} with {_error(board, second)}, {_times(board, best, second)} times "
    return [said + f"the error of {best}."]


def _first_trained(board: Board) -> list[str]:
    """Where something that was never trained by steps is ahead, that must be said."""
    if board.models[0] not in UNTRAINED:
        return []
    trained = [model for model in board.models if model not in UNTRAINED]
    if not trained:
        return ["No trained network takes part."]
    first = trained[0]
    return [
        f"The winner is a reference predictor, not a trained network; the best network is {first}, "
        f"in place {board.models.index(first) + 1} with {_error(board, first)}."
    ]


def _place_of_pibert(board: Board) -> list[str]:
    models = board.models
    trained = [model for model in models if model not in UNTRAINED]
    if "pibert" not in models or "pibert" in (*models[:2], *trained[:1]):
        return []
    place = models.index("pibert") + 1
    return [f"In place {place} is pibert with {_error(board, 'pibert')}."]


def _certainty(board: Board) -> str:
    seeds = len({seed for _, seed in board.scores})
    runs = "One seed: how much another one would change is not known."
    if seeds > 1:
        runs = f"Numbers are means over {seeds} seeds."
    best = board.models[0]
    if not has_marks(board):
        return f"There are too few test frames for intervals, so nothing here is certain. {runs}"
    level = [m for m in board.models if _is_level(board, m)]
    if level:
        said = f"Not significantly different from {best}: {_listed(level)}."
    else:
        said = f"All other models differ significantly from {best}."
    return f"{said} Intervals are of the test part alone. {runs}"


def _is_level(board: Board, model: str) -> bool:
    marks = [record["against_best"] for record in board.find(model, "nmse")]
    return "best" not in marks and "level" in marks


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


def taken_runs(results: Mapping[str, Any]) -> list[str]:
    """Entrants that were trained elsewhere, each with a budget of its own."""
    entrants = results.get("comparison", {}).get("entrants", {})
    return [name for name, entrant in entrants.items() if entrant.get("run") is not None]


def _exempt(results: Mapping[str, Any]) -> str:
    taken = taken_runs(results)
    return f" but {', '.join(taken)}, which entered as trained elsewhere" if taken else ""


def protocol(results: Mapping[str, Any], boards: Sequence[Board]) -> Facts:
    """What holds for all data sets."""
    plan = results["comparison"]
    fit, hardware = plan["training"], plan["hardware"]
    runs = [run for run in results["runs"] if "failed" not in run]
    devices = dict.fromkeys(
        " / ".join(dict.fromkeys((run["hardware"], run["cost"]["device"]))) for run in runs
    )
    seeds = ", ".join(str(seed) for seed in plan["seeds"])
    recipe = "optimiser and learning rate of each model as tuned"
    if not plan.get("tuning"):
        recipe = (
            f"{fit['optimizer']}, learning rate {fit['learning_rate']:g} unless an entrant has its "
            "own"
        )
    rollouts = plan["rollout"]
    facts = [
        (
            "Budget",
            f"{integer(plan['samples'])} samples for every trained model{_exempt(results)}, "
            f"counted with repetition, pretraining included; batches of {fit['batch_size']}, "
            f"{recipe}",
        ),
        *([("Tuning", tuning_text(results))] if plan.get("tuning") else []),
        ("Seeds", f"{seeds}; predictors without training run once"),
        ("Selection", f"epoch of the least {monitored(results)} on the validation part"),
        ("Test", "scored once, at the end; every frame predicted from true frames before it"),
        ("Rollouts", f"{rollouts['steps']} frames from {rollouts['starts']} starts"),
        ("Reference", f"{plan['reference']}; it picks the frames shown: {_pick_rule(boards)}"),
        ("Precision", str(hardware["precision"])),
        ("Hardware", "; ".join(devices) or "not recorded"),
        ("Commit", str(results.get("commit") or "not recorded")),
        ("Versions", ", ".join(f"{name} {v}" for name, v in results["versions"].items())),
        ("Command", command(results)),
    ]
    return facts


def monitored(results: Mapping[str, Any]) -> str:
    """The value that chooses epochs, in words: reconstruction would suggest the filling of gaps."""
    name = results["comparison"]["training"]["monitor"]
    known = {"reconstruction": "error of the next frame", "loss": "loss"}
    return known.get(name, f"{name} error")


def tuned_models(results: Mapping[str, Any], data: str) -> dict[str, Mapping[str, Any]]:
    """Tuning of the models that have a choice on a data set; empty without tuning."""
    records = results.get("tuning") or ()
    return {own["model"]: own for own in records if own["data"] == data and own["chosen"]}


def trial_text(results: Mapping[str, Any]) -> str:
    """The tuning budget of every model."""
    plan = results["comparison"]
    tuning, trials = plan["tuning"], [own["trials"] for own in results["tuning"]]
    count = max((len(own) for own in trials), default=0)
    samples = integer(max(1, round(tuning["budget"] * plan["samples"])))
    return (
        f"Every trained model gets {count} {'trial' if count == 1 else 'trials'} of {samples} "
        f"samples ({100 * tuning['budget']:g} % of the budget, to within half an epoch), "
        f"pretraining included, on top of the budget, with seed {tuning['seed']}."
    )


def tuning_text(results: Mapping[str, Any]) -> str:
    """How learning rates and optimisers were chosen, and what to doubt about it."""
    plan, records = results["comparison"], results["tuning"]
    tuning = plan["tuning"]
    rates = ", ".join(f"{rate:g}" for rate in sorted(tuning["learning_rates"]))
    said = [
        f"Learning rates {rates} with {_listed(tuning['optimizers'])}; the trial of the least "
        f"{monitored(results)} on the validation part decides, and none of them uses the test "
        f"part. {trial_text(results)}"
    ]
    said += [f"{name} takes the choice of {own}." for name, own in tuning["reuse"].items()]
    edges = [f"{own['model']} on {own['data']} ({own['edge']})" for own in records if own["edge"]]
    if edges:
        said.append(
            "At the edge of the rates tried, so that a better one may lie beyond: "
            f"{_listed(edges)}."
        )
    tuned = {own["model"] for own in records}
    others = [name for name in plan["entrants"] if name not in tuned]
    if others:
        said.append(f"Not tuned: {_listed(others)}.")
    return " ".join(said)


def command(results: Mapping[str, Any]) -> str:
    """The exact command where it was recorded."""
    given = results.get("command")
    if given is None:
        return "not recorded; all settings stand under Provenance"
    return given if isinstance(given, str) else shlex.join(given)


def _pick_rule(boards: Sequence[Board]) -> str:
    return next((str(board.reference.card["pick_rule"]) for board in boards), "none")


def data_facts(board: Board) -> Facts:
    """What holds for one data set."""
    card, spec = board.reference.card["data"], board.spec
    ny, nx = spec.grid.shape
    unit = card["length_unit"]
    step = "" if spec.dt is None else f"; frames {spec.dt:g} apart"
    spacing = with_unit(f"{spec.grid.dx:.4g} × {spec.grid.dy:.4g}", unit)
    channels = zip(spec.channels, spec.units, strict=True)
    parameters = ", ".join(parameter.name for parameter in spec.parameters)
    facts = [
        ("Data", ", ".join(f"{key} {_plain(v)}" for key, v in board.facts["source"].items())),
        ("Hash", str(board.facts["hash"])),
        ("Split", f"{split_text(card['split'])}; {integer(card['test_frames'])} test frames"),
        ("Fields", ", ".join(with_unit(name, own) for name, own in channels)),
        ("Grid", f"{ny} rows × {nx} columns, spacing (x × y) {spacing}{step}"),
        ("Parameters", parameters or "none"),
        ("Intervals", _intervals(board)),
    ]
    if filled := card.get("filled_points"):
        facts.insert(3, ("Filled points", f"{integer(filled)} of the test frames are not scored"))
    if set(spec.units) == {"1"}:
        facts.insert(4, ("Units", "dimensionless: velocity over the reference velocity"))
    return facts


def _intervals(board: Board) -> str:
    method = str(board.facts["intervals"])
    if method.startswith("none"):
        return method
    memory = board.facts["correlation_frames"]
    known = "" if memory is None else f"; the flow's correlation time is {digits(memory, 2)} frames"
    return f"95 %, paired bootstrap over {method}, the same draws for all models{known}"


def split_text(split: Mapping[str, Sequence[Sequence[int | None]]]) -> str:
    """``training 3 trajectories, validation 1, test 2``; frames where parts are of one."""
    said = []
    for part, pieces in split.items():
        homes = len({piece[0] for piece in pieces})
        if not pieces:
            continue
        whole = all(piece[1] == 0 and piece[2] is None for piece in pieces)
        spans = {(piece[1], piece[2]) for piece in pieces}
        text = f"{homes} {'trajectory' if homes == 1 else 'trajectories'}"
        if not whole and len(spans) == 1:
            first, end = spans.pop()
            last = "the last" if end is None else str(end - 1)
            text = f"frames {first} to {last} of {text}"
        elif not whole:
            text = f"parts of {text}"
        said.append(f"{_PARTS.get(part, part)} {text}")
    return ", ".join(said)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
