"""Train and compare models on flows: ``pibert.fit`` and ``pibert.compare``."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pibert.api.flows import Flow, as_flow, speaks_python
from pibert.api.model import Model, load
from pibert.display import table_html
from pibert.notes import Notes, collecting, in_python

if TYPE_CHECKING:
    from rich.console import Console

    from pibert.experiments import Experiment


@speaks_python
def fit(
    data: Any,
    model: str | None = None,
    *,
    preset: str | None = None,
    epochs: int | None = None,
    start: str | Path | Model | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    logger: str | Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Model:
    """Train a model on flows, as ``pibert train`` does, and return it with its best weights.

    The amount of data and the machine determine split, epochs, batch size, learning rate and size,
    unless you give them. Call it again with the same arguments to resume an interrupted run, or to
    load a finished one.

    Args:
        data: A flow, anything that ``read`` and ``flow`` take, or a list of these, such as several
            conditions.
        model: A key of ``pibert.MODELS``; default: ``pibert-mr``, or the model of ``start``.
        preset: Size of the model by name, such as ``small``.
        epochs: Passes over the training data.
        start: Fine-tune this model: a run folder, a model, or the name of a shipped one such as
            ``cylinder-mr``.
        out: Run folder; default: ``runs/FLOW-MODEL``, with a number if that holds another run.
        seed: Seed of the weights and of the order of samples.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        logger: ``tensorboard``, ``csv``, ``mlflow``, ``wandb``, ``trackio``, several of these, or
            ``none``; default: TensorBoard if it is installed.
        settings: Other settings of an experiment, such as ``{"data.shares.train": 0.6}``.
        quiet: Print nothing.
    """
    from rich.console import Console

    from pibert.experiments import run
    from pibert.experiments.summary import headline, notes_on
    from pibert.progress import TrainingProgress, is_first_process, say

    class Progress(TrainingProgress):
        """Its notes name arguments."""

        def say(self, text: str) -> None:
            super().say(in_python(text))

    flow = as_flow(data)
    if isinstance(start, Model):
        start = start.saved_in("be a start")
    named = {
        "model.name": model,
        "model.preset": preset,
        "training.epochs": epochs,
        "start": None if start is None else str(start),
        "seed": seed,
        "hardware.accelerator": device,
        "training.logger": logger,
    }
    texts = _settings({k: v for k, v in named.items() if v is not None} | dict(settings or {}))
    console = Console(quiet=quiet or not is_first_process())
    with collecting(_printed(console)) as notes:
        folder, experiment = _place(flow, model or _name_of(start), texts, out, notes)
        with _keeping(flow, experiment, folder), Progress(console) as progress:
            try:
                finished = run(experiment, folder, reporter=progress)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"interrupted; call fit again with out={str(folder)!r} to resume"
                ) from None
        say(console, headline(finished))
        for note in notes_on(finished):
            notes.add(note)
        say(console, f"Run: {folder}")
    return load(folder, device)


def _place(
    flow: Flow, model: str, settings: Sequence[str], out: str | Path | None, notes: Notes
) -> tuple[Path, "Experiment"]:
    """The run folder and the experiment: a folder that is new, or holds this experiment."""
    from pibert.experiments.recipe import recipe_for
    from pibert.experiments.run_folder import FLOWS, refuse_other

    frames = [trajectory.num_frames for trajectory in flow]
    for folder in _folders(flow, model) if out is None else [Path(out)]:
        path, stated = flow.path or folder / f"{FLOWS}{flow.key}.h5", flow.stated
        experiment, texts = recipe_for(path, settings, stated=stated, frames=frames)
        try:
            refuse_other(experiment, folder, "train")
        except (ValueError, FileExistsError):
            if out is not None:
                raise
            continue
        for text in texts:
            notes.add(text)
        return folder, experiment
    raise AssertionError("folders do not end")


def _folders(flow: Flow, model: str) -> Iterator[Path]:
    name = re.sub(r"[^\w.-]+", "-", f"{flow.name}-{model}").strip("-.")
    yield Path("runs") / name
    yield from (Path("runs") / f"{name}-{number}" for number in itertools.count(2))


@contextlib.contextmanager
def _keeping(flow: Flow, experiment: "Experiment", folder: Path) -> Iterator[None]:
    """Write flows in memory to the file of the experiment; remove it if nothing comes of it."""
    path = Path(str(experiment.data.path))
    if flow.path is not None or path.exists():
        yield
        return
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        flow.save(path)
        yield
    except BaseException:
        if set(folder.iterdir()) <= {path}:
            path.unlink(missing_ok=True)
            for each in made:
                each.rmdir()
        raise


def _name_of(start: str | Path | None) -> str:
    return "pibert-mr" if start is None else f"from-{Path(start).name}"


def _settings(given: Mapping[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        if isinstance(value, str | Path):
            return str(value)
        return "none" if value is None else json.dumps(value)

    return [f"{name}={text(value)}" for name, value in given.items()]


def _printed(console: "Console") -> Notes:
    from pibert.progress import say

    return Notes(on_new=lambda note: say(console, f"Note: {in_python(str(note))}"))


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """The result of a comparison: models in the order of their error."""

    folder: Path
    results: Mapping[str, Any]
    """The content of ``results.json``."""

    @property
    def order(self) -> list[str]:
        """Names of the models, the best first."""
        (facts,) = self.results["data"].values()
        return [row["model"] for row in facts["ranking"]]

    def __getitem__(self, model: str) -> Model:
        """A trained model of the comparison, of the first seed."""
        for run in self.results["runs"]:
            if run["model"] == model and "failed" not in run:
                return load(self.folder / run["folder"])
        raise KeyError(f"there is no finished model {model!r}; there are: {', '.join(self.order)}")

    def report(self) -> Path:
        """Write the report page, with all tables and figures."""
        from pibert.comparison.page import write_page

        return write_page(self.folder)

    def __repr__(self) -> str:
        rows = [self._columns, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        return table_html(self._columns, self._rows())

    @property
    def _columns(self) -> tuple[str, ...]:
        from pibert.comparison.results import RANKING_COLUMNS

        return RANKING_COLUMNS

    def _rows(self) -> list[tuple[str, ...]]:
        from pibert.comparison.results import ranking_table

        (name,) = self.results["data"]
        return list(ranking_table(self.results, name))


@speaks_python
def compare(
    models: Sequence[str | Path | Model],
    data: Any,
    *,
    out: str | Path | None = None,
    seeds: Sequence[int] = (0,),
    samples: int | None = None,
    rollout: int = 0,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Ranking:
    """Train models on the same flows with the same budget and rank them on test data.

    Args:
        models: Names such as ``pibert-mr`` or ``unet:small`` (a model and its preset); a finished
            run on these flows, as a folder or what ``fit`` returned. Persistence is always added.
        data: As for ``fit``.
        out: Folder of the comparison, where finished runs are reused; default:
            ``runs/FLOW-comparison``, with a number if that holds another comparison.
        seeds: Each model is trained with each of them.
        samples: Training samples that every model sees, counted with repetition; default: as
            ``fit``.
        rollout: Also score rollouts of this many frames.
        settings: Further settings of a plan, such as ``{"training.learning_rate": 1e-3}``; those of
            the data as for ``fit``, such as ``{"data.split": "higher:Re"}``.
        quiet: Print nothing.
    """
    from rich.console import Console

    from pibert.comparison import Comparison, carry_out, gather, refuse_other
    from pibert.comparison.live import LiveTable
    from pibert.config import with_overrides
    from pibert.experiments.evaluation import RolloutPlan
    from pibert.experiments.recipe import recipe_for
    from pibert.experiments.run_folder import FLOWS

    flow = as_flow(data)
    frames = [trajectory.num_frames for trajectory in flow]
    console = Console(quiet=quiet)
    with collecting(_printed(console)) as notes:
        of_data = {n: v for n, v in (settings or {}).items() if n.startswith("data.")}
        stated = _settings({n.replace("data.flow.", "data."): v for n, v in of_data.items()})
        others = {n: v for n, v in (settings or {}).items() if n not in of_data}
        for folder in _folders(flow, "comparison") if out is None else [Path(out)]:
            path = flow.path or folder / f"{FLOWS}{flow.key}.h5"
            experiment, texts = recipe_for(path, stated, stated=flow.stated, frames=frames)
            seen = experiment.data.shares.train * sum(frames) * experiment.training.epochs
            plan = Comparison(
                data={"flow": experiment.data},
                candidates=_candidates(models, experiment),
                seeds=tuple(seeds),
                samples=samples or max(1, round(seen)),
                rollout=RolloutPlan(steps=rollout),
                hardware=experiment.hardware,
            )
            plan = with_overrides(plan, tuple(_settings(others)))
            try:
                refuse_other(plan, folder)
            except (ValueError, FileExistsError):
                if out is not None:
                    raise
                continue
            break
        for text in texts:
            notes.add(text)
        with _keeping(flow, experiment, folder), LiveTable(plan, console) as table:
            failed = carry_out(plan, folder, table)
        results = gather(plan, folder, failed)
    if failed:
        reasons = "; ".join(f"{job.candidate}: {reason}" for job, reason in failed.items())
        raise RuntimeError(f"{len(failed)} of the runs in {folder} failed: {reasons}")
    return Ranking(folder, results)


def _candidates(models: Sequence[str | Path | Model], experiment: "Experiment") -> dict[str, Any]:
    from pibert.comparison import Candidate
    from pibert.experiments.experiment import ModelConfig
    from pibert.models import MODELS, PRESETS

    if isinstance(models, str | Path | Model):
        raise TypeError(f"expected a list of models, found {models!r}; write [...] around it")
    found: dict[str, Any] = {}
    if not models:
        raise ValueError("expected at least one model to compare, found an empty list")
    for each in models:
        if isinstance(each, str) and each.partition(":")[0] in MODELS:
            name, _, preset = each.partition(":")
            if not preset and experiment.model.preset in PRESETS[name]:
                preset = experiment.model.preset or ""  # small without a GPU
            chosen = ModelConfig(name=name, preset=preset or None)
            found[each.replace(":", "-")] = Candidate(model=chosen)
            continue
        path = each.path if isinstance(each, Model) else Path(each)
        if path is None or not (path / "model.json").exists():
            raise ValueError(
                f"expected the name of a model ({', '.join(MODELS)}) or a finished run, found "
                f"{each!r}"
            )
        found[path.name] = Candidate(run=str(path.resolve()))
    found.setdefault("persistence", Candidate(model=ModelConfig(name="persistence")))
    return found
