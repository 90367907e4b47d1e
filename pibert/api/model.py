"""A trained model with everything that can be done with it."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pibert.api.flows import Flow, as_flow, speaks_python
from pibert.display import Picture, as_html, draw
from pibert.fields import Grid, Trajectory
from pibert.inference.model_file import find_model, read_model
from pibert.inference.predictor import Predictor
from pibert.inference.stream import check_steps
from pibert.notes import Note, Notes, collecting, in_python, warn

if TYPE_CHECKING:
    from pibert.data.writers.frames import Block, Description
    from pibert.evaluation.forecast_scores import ForecastScores
    from pibert.evaluation.scores import Scores
    from pibert.inference.calibrated import CalibratedPredictor
    from pibert.inference.calibration import Calibration

STEPS = 200
"""Frames of a rollout, if nothing else is asked for."""


def load(
    name_or_path: Path | str, device: torch.device | str = "cpu", *, chunk: int = 128
) -> "Model":
    """Load a trained model.

    Args:
        name_or_path: A run folder, a model folder, the .safetensors file of a model, or the name of
            a shipped model (``pibert.inference.shipped_models``). A path that exists wins.
        device: ``cpu``, ``cuda`` or ``mps``; ``auto``: CUDA, else Apple's MPS, else the CPU.
        chunk: Most samples per call of the network; larger batches are split.
    """
    saved = read_model(name_or_path, device)
    model = Model(saved.model, saved.normalizer, card=saved.card, chunk=chunk)
    model.path = find_model(name_or_path)
    return model


class Model(Predictor):
    """A trained model: a ``Predictor`` that also takes flows, and the commands as methods.

    ``step``, ``iterate``, ``consistency`` and ``explain`` are those of ``Predictor``, and so are
    ``rollout``, ``predict`` and ``fill`` for arrays, tensors and xarray.
    """

    path: Path | None = None
    """Folder or file that it was loaded from."""

    @speaks_python
    def rollout(
        self,
        fields: Any,
        steps: int = STEPS,
        parameters: Any = None,
        mask: Any = None,
        *,
        grid: Grid | None = None,
        start: int | None = None,
        level: float | None = None,
    ) -> Any:
        """Predict ``steps`` frames autoregressively, each from those before it.

        Args:
            fields: A flow gives a ``Forecast``; arrays, tensors and xarray give frames of the same
                kind, or with a level a ``Prediction``.
            steps: Frames to predict.
            parameters: Flow parameters by name; they replace those of a flow.
            mask: True where arrays are known.
            grid: Grid of arrays, if it is not the model's.
            start: Newest frame of a flow that the model sees, from the end if negative; default:
                the first with enough frames before it.
            level: Level of prediction intervals, such as 0.9; needs ``calibrate``.
        """
        if (flow := _flow(fields)) is not None:
            return self._forecast(flow, steps, parameters, start, level)
        if level is None:
            return super().rollout(fields, steps, parameters, mask, grid=grid)
        return self.calibrated.rollout(fields, steps, parameters, mask, grid=grid, level=level)

    @speaks_python
    def predict(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Any = None,
        mask: Any = None,
        *,
        grid: Grid | None = None,
        start: int | None = None,
        level: float | None = None,
    ) -> Any:
        """Predict the next frame from each frame of a flow; with ``steps``, as ``rollout``.

        Arrays give a ``Prediction``, with notes in place of Python warnings.
        """
        if (flow := _flow(fields)) is not None:
            return self._forecast(flow, steps, parameters, start, level)
        if level is None:
            return super().predict(fields, steps, parameters, mask, grid=grid)
        steps = self.horizon if steps is None else steps
        return self.calibrated.rollout(fields, steps, parameters, mask, grid=grid, level=level)

    @speaks_python
    def fill(
        self,
        fields: Any,
        known: Any = None,
        parameters: Any = None,
        *,
        grid: Grid | None = None,
        **settings: Any,
    ) -> Any:
        """Fill unknown values of fields; in a flow, replace outliers too.

        Args:
            fields: A flow gives a flow, in which filled values are marked.
            known: True where arrays are known.
            parameters: Flow parameters of arrays, by name.
            grid: Grid of arrays, if it is not the model's.
            settings: For a flow: ``flag_outliers``, ``noise`` and ``fill_masked``, as in
                ``Flow.fill``.
        """
        flow = _flow(fields)
        if flow is None:
            return super().fill(fields, known, parameters, grid=grid)
        from pibert.inference.filling import fill_settings

        how = fill_settings(self, self.saved_in("fill flows"), **settings)
        return flow.fill(settings=how)

    @speaks_python
    def evaluate(
        self,
        flow: Any = None,
        *,
        rollout: int = 0,
        free_run: int = 0,
        out: Path | str | None = None,
    ) -> "Scores":
        """Score the model on the test split of its run, or on other flows.

        Args:
            flow: Flows that it was not trained on; default: its test split.
            rollout: Also score rollouts of this many frames.
            free_run: Also compare the statistics of runs of this many frames.
            out: Folder of the scores; default: in the folder of the model.
        """
        from pibert.experiments.evaluation import RolloutPlan, score_model

        folder = self.saved_in("evaluate")
        if flow is None and not (folder / "config.json").exists():
            raise ValueError(
                f"{folder}: expected a run, which has a test split, found only a model; give "
                "flows to score it on: model.evaluate(flow)"
            )
        plan = RolloutPlan(steps=rollout, free_run=free_run)
        into = None if out is None else Path(out)
        if flow is None:
            return score_model(folder, into=into, rollout=plan)[0]
        with as_flow(flow).as_file() as (path, stated):
            return score_model(folder, path, stated, into=into, rollout=plan)[0]

    @speaks_python
    def calibrate(self, flow: Any = None, **settings: Any) -> "Calibration":
        """Calibrate prediction intervals and the out-of-distribution warning.

        Args:
            flow: Flows that neither training nor selection saw; None: those that the run set aside.
            settings: Those of ``CalibrationSettings``: ``leads``, ``starts``, ``difficulty`` ...
        """
        from pibert.experiments.calibration import calibrate_on, calibrate_run
        from pibert.inference.calibration import CalibrationSettings

        folder, how = self.saved_in("calibrate"), CalibrationSettings(**settings)
        self.__dict__.pop("calibrated", None)
        device = str(self.device)
        if flow is None:
            return calibrate_run(folder, how, device=device)
        with as_flow(flow).as_file() as (path, stated):
            return calibrate_on(folder, path, how, stated=stated, device=device)

    @cached_property
    def calibrated(self) -> "CalibratedPredictor":
        """The model with its calibration, which must exist."""
        from pibert.inference.calibrated import CalibratedPredictor, with_members
        from pibert.inference.calibration_file import read_calibration

        folder = self.saved_in("predict with intervals")
        predictor = with_members(self, folder)
        return CalibratedPredictor(predictor, read_calibration(folder, predictor.weights_sha256))

    def save(self, folder: Path | str) -> Path:
        """Write the model, and its calibration if there is one, to a folder."""
        from pibert.inference.calibration_file import SHEET, TENSORS, read_sheet
        from pibert.inference.model_file import HEADS, WEIGHTS, save_model

        folder = Path(folder)
        if (folder / WEIGHTS).exists():
            raise FileExistsError(f"{folder / WEIGHTS} exists; choose another folder")
        save_model(
            folder,
            self.model,
            self.normalizer,
            provenance=self.card.get("provenance", {}),
            metrics=self.card.get("metrics", {}),
            trained=self.card.get("trained", dict.fromkeys(HEADS, True)),
        )
        source = self.path if self.path is not None and self.path.is_dir() else None
        if source is not None and (source / SHEET).exists():
            if read_sheet(source).get("members"):
                warn(f"{folder}: the calibration is of an ensemble and stays in {source}")
            else:
                for name in (TENSORS, SHEET):
                    shutil.copy(source / name, folder / name)
        self.path = self.path or folder
        return folder

    @speaks_python
    def export(self, path: Path | str, to: str | None = None, **settings: Any) -> Path:
        """Write an ONNX file (.onnx) or a torch.export program (.pt2), checked against the model.

        Args:
            path: File to write.
            to: ``onnx`` or ``torch-export``; default: by the suffix of the file.
            settings: ``data``, ``tolerance`` and ``overwrite``, as for ``pibert export``.
        """
        from pibert.export import export_model

        path = Path(path)
        named = {".onnx": "onnx", ".pt2": "torch-export"}.get(path.suffix)
        if to is None and named is None:
            raise ValueError(f"{path}: expected a name that ends in .onnx or .pt2, or to=")
        saved = read_model(self.saved_in("export"))
        return export_model(saved, path, to or named or "", **settings).path

    @speaks_python
    def serve(self, port: int = 8000, *, host: str = "127.0.0.1") -> None:
        """Serve the model over HTTP with a web viewer, until interrupted."""
        from pibert.serve.server import serve

        folder = str(self.saved_in("serve"))
        serve([folder], print, host=host, port=port, device=str(self.device))

    def saved_in(self, purpose: str = "have a folder") -> Path:
        """Return the folder of the model; raise ValueError if it exists in memory only."""
        if self.path is None:
            raise ValueError(
                f"expected a model that was saved to {purpose}, found one in memory; save it "
                "first: model.save(FOLDER)"
            )
        return self.path

    def _forecast(
        self,
        flow: Flow,
        steps: int | None,
        parameters: Any,
        start: int | None,
        level: float | None,
    ) -> "Forecast":
        from pibert.evaluation.forecast_scores import ForecastScores
        from pibert.inference.forecast import Forecaster, written_spec
        from pibert.inference.recording import fit_recording

        calibrated = None if level is None else self.calibrated
        if calibrated is not None and steps is not None and steps > calibrated.calibration.leads:
            raise ValueError(
                f"expected at most {calibrated.calibration.leads} steps with intervals, the "
                f"calibrated lead times, found {steps}; take fewer, or calibrate more: "
                f"model.calibrate(leads={steps})"
            )
        notes = Notes()
        if len(flow) > 1:
            text = f"the first of {len(flow)} recordings, {flow.recordings.names[0]!r}"
            notes.add(Note("first-trajectory", text, "choose another: flow[1]", "info"))
        with collecting(notes):
            given = dict(parameters or {})
            recording = fit_recording(
                flow[0], self.spec, self.history, parameters=given, notes=notes
            )
            forecaster = Forecaster(recording, self, calibrated, level)
            newest, stop = recording.check_start(start)
            if steps is None:
                blocks = forecaster.next_frames(newest)
            else:
                check_steps(steps)
                blocks = forecaster.rollout(newest, stop, steps)
            written = written_spec(recording)
            fields = len(written.channels)
            scores = ForecastScores(written, self.normalizer.first(fields))
            kept = []
            try:
                for block, last in blocks:
                    kept.append(block)
                    scores.add(block, last)
            except FloatingPointError as error:
                if steps is None or not kept:
                    raise
                notes.add(Note("diverged", str(error)))
            if level is not None and (note := forecaster.ood.note()) is not None:
                notes.add(note)
            if not scores.numbers:
                notes.add(recording.why_no_truth())
        about = forecaster.describe(
            source={"file": flow.recordings.path.name, "kind": flow.recordings.kind},
            model=self.card.get("model", {}).get("name", type(self.model).__name__),
            facts={"mode": "predict" if steps is None else "rollout", "start": newest},
            counted="frame" if steps is None else "step",
            times=[float(t) for block in kept for t in block.time] if steps is None else (),
            dt=None if steps is None else recording.time_step,
        )
        return Forecast(about, tuple(kept), scores, tuple(notes))

    def _repr_html_(self) -> str:
        return as_html(self.facts())

    def facts(self) -> dict[str, str]:
        """Return a description of the model: name, channels, grid, time step ..."""
        spec, grid = self.spec, self.spec.grid
        units = zip(spec.channels, spec.units, strict=True)
        name = self.card.get("model", {}).get("name", type(self.model).__name__)
        parameters = self.card.get("weights", {}).get("parameters")
        return {
            "model": name if parameters is None else f"{name}, {parameters:,} parameters",
            "channels": ", ".join(n if unit == "1" else f"{n} [{unit}]" for n, unit in units),
            "grid": f"{grid.shape[0]} x {grid.shape[1]} points (rows x columns)",
            "time step": "not stated" if spec.dt is None else f"{spec.dt:.4g}",
            "flow parameters": ", ".join(spec.parameter_names) or "none",
            "from": str(self.path or "memory"),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """Frames predicted from a flow, beside the true ones where they were recorded."""

    about: "Description"
    blocks: "tuple[Block, ...]" = field(repr=False)
    scores: "ForecastScores" = field(repr=False)
    """``overall`` and ``by_number``: NMSE and skill where there are true frames."""
    notes: tuple[Note, ...] = ()

    @cached_property
    def fields(self) -> torch.Tensor:
        """(time, channel, y, x), NaN where the input was unknown."""
        return torch.cat([block.masked for block in self.blocks])

    @cached_property
    def truth(self) -> torch.Tensor:
        """The recorded frames at the same times, NaN where there is none."""
        truth = (block.truth for block in self.blocks)
        return torch.cat([frames for frames in truth if frames is not None])

    @property
    def time(self) -> torch.Tensor:
        return torch.cat([block.time for block in self.blocks])

    @property
    def low(self) -> torch.Tensor | None:
        """Lower ends of the prediction intervals."""
        return _joined(block.low for block in self.blocks)

    @property
    def high(self) -> torch.Tensor | None:
        """Upper ends of the prediction intervals."""
        return _joined(block.high for block in self.blocks)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Displacement, forces ... of moving bodies, (time,); with intervals also their ends."""
        return {
            name: torch.cat([block.series[name] for block in self.blocks])
            for name in self.about.series
        }

    def __len__(self) -> int:
        return sum(len(block.time) for block in self.blocks)

    def numpy(self) -> Any:
        """Return ``fields`` as an array."""
        return self.fields.numpy()

    def plot(self, path: Path | str | None = None) -> Picture:
        """Plot prediction, truth and error; write a .png, .pdf or .svg file if a path is given."""
        return draw(lambda target: self._write(target, overwrite=True), path)

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write a file in the format of its suffix: data, a picture or an animation."""
        self._write(Path(path), overwrite=overwrite)
        return Path(path)

    def _write(self, path: Path, *, overwrite: bool) -> None:
        from pibert.data.writers import OF_PREDICTIONS
        from pibert.report.forecast import make_writer

        if path.suffix.lower() not in OF_PREDICTIONS:
            raise ValueError(
                f"{path}: expected a name that ends in {', '.join(OF_PREDICTIONS)}, found "
                f"{path.suffix or path.name!r}"
            )
        writer = make_writer(path, path.suffix.lower(), self.about, overwrite, len(self))
        writer.check()
        with writer:
            for block in self.blocks:
                writer.append(block)

    def __repr__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self._facts().items()]
        return "\n".join([*lines, *(f"Note: {in_python(str(note))}" for note in self.notes)])

    def _repr_html_(self) -> str:
        notes = (in_python(str(note)) for note in self.notes)
        return as_html(self._facts(), notes, self.plot())

    def _facts(self) -> dict[str, str]:
        unit = self.about.time_unit or ""
        first, last = float(self.time[0]), float(self.time[-1])
        facts = {
            "forecast": f"{self.about.name}, {len(self)} frames, t = {first:.4g} to {last:.4g} "
            f"{unit}".rstrip(),
        }
        if scores := self.scores.overall():
            count = len(self.scores.numbers)
            values = (f"{metric} {scores[metric]['all']:.3g}" for metric in ("nmse", "skill"))
            facts["scores"] = f"{', '.join(values)}, on {count} recorded frames"
        if self.about.state:
            from pibert.evaluation.structure import state_scores

            found = state_scores([block.series for block in self.blocks], self.about.state)
            values = (f"{name} {found[name]['error']:.3g}" for name in found)
            facts["state"] = f"rms error over the deviation: {', '.join(values) or 'unknown'}"
        if shares := scores.get("coverage"):
            values = (f"{share:.3f} of the true {name}" for name, share in shares.items())
            level = f"{self.about.interval_level:g}"
            facts["intervals"] = f"level {level}; they contain {', '.join(values)}"
        return facts


def _joined(parts: Iterable[torch.Tensor | None]) -> torch.Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _flow(fields: Any) -> Flow | None:
    """The flow of an argument; None for arrays, tensors and xarray."""
    return as_flow(fields) if isinstance(fields, str | Path | Trajectory | Flow) else None
