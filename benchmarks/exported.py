"""Exported models: how far they are from their source, and how fast onnxruntime runs them.

Every model has its first preset, weights moved off their start at random, two channels on a 64 x 64
grid and one parameter; reference predictors are fitted to drawn fields. The file of each kind is
checked as ``pibert export`` does. Then ``Predictor.step`` and onnxruntime take turns on the same
batch in one process, with as many threads each.

    python benchmarks/exported.py [--models pibert,fno2d] [--batch 1] [--rounds 20] [--threads 1]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pibert.export import TARGETS, export_model
from pibert.export.check import draw_samples
from pibert.fields import Batch, FieldSpec, Grid, Normalizer, Parameter
from pibert.inference import Predictor, read_model, save_model
from pibert.models import MODELS, PRESETS, build_model
from pibert.models.references.simple import Reference

SPEC = FieldSpec(
    units=("m/s", "m/s"),
    parameters=(Parameter(name="Re", scaling="log", mean=3.5, std=0.3),),
    dt=0.01,
    grid=Grid((64, 64), dx=0.002, dy=0.002),
    family="incompressible",
    reference_velocity=1.0,
    reference_length=0.02,
)
NORMALIZER = Normalizer((1.0, 0.0), (0.5, 0.3))


def make(name: str, preset: str | None) -> torch.nn.Module:
    """A model that is not persistence any more."""
    torch.manual_seed(0)
    model = build_model(name, preset=preset, spec=SPEC)
    if isinstance(model, Reference):
        model.fit([drawn_batch(model.config.history, model.config.horizon)], NORMALIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def drawn_batch(history: int, horizon: int, samples: int = 32) -> Batch:
    frames = torch.randn(samples, history + horizon, 2, *SPEC.grid.shape)
    known = torch.ones(samples, *SPEC.grid.shape, dtype=torch.bool)
    return Batch(
        x=frames[:, :history].flatten(1, 2),
        y=frames[:, history:],
        parameters=torch.zeros(samples, 16),
        mask=known,
        target_mask=known[:, None].expand(-1, horizon, -1, -1),
        sample=torch.arange(samples),
        seeds=torch.arange(samples),
    )


def medians(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Milliseconds of each, called in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 3):
        for call, kept in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if number >= 3:
                kept.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(kept) for kept in times]


def compare(predictor: Predictor, file: Path, batch: int, rounds: int) -> str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    samples = draw_samples(predictor)
    fields = samples.fields[:1].expand(batch, -1, -1, -1, -1).numpy().copy()
    mask = samples.mask[:1].expand(batch, -1, -1).numpy().copy()
    parameters = samples.parameters[:1].expand(batch, -1).numpy().copy()
    given = {"fields": fields, "mask": mask, "parameters": parameters}

    def by_torch() -> object:
        return predictor.step(fields, {"Re": parameters[:, 0]}, mask)

    ours, theirs = medians([by_torch, lambda: session.run(["frames"], given)], rounds)
    return f"torch {ours:.1f} ms, onnxruntime {theirs:.1f} ms, ratio {theirs / ours:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS), help="NAME or NAME:PRESET, by commas")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"batch {options.batch}, {options.threads} threads, torch {torch.__version__}")
    for entry in options.models.split(","):
        name, _, preset = entry.partition(":")
        preset = preset or next(iter(PRESETS[name]))
        with tempfile.TemporaryDirectory() as folder:
            try:
                save_model(folder, make(name, preset), NORMALIZER, trained={"forward": True})
            except ImportError as error:
                print(f"{name} {preset}: {error}", flush=True)
                continue
            saved = read_model(folder)
            for target, kind in TARGETS.items():
                file, start = Path(folder, "model" + kind.suffix), time.perf_counter()
                try:
                    made = export_model(saved, file, target)
                except ValueError as error:
                    print(f"{name} {preset} {target}: {error}", flush=True)
                    continue
                took = time.perf_counter() - start
                line = f"{name} {preset} {target}: {made.size / 1e6:.1f} MB in {took:.0f} s, "
                line += f"relative difference {made.difference.relative:.1e}"
                if target == "onnx":
                    predictor = Predictor(saved.model, saved.normalizer, card=saved.card)
                    line += "; " + compare(predictor, file, options.batch, options.rounds)
                print(line, flush=True)


if __name__ == "__main__":
    main()
