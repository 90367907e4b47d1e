"""A predictor on test frames: terms of all measures, and what pictures need.

Every trajectory is stepped through in the order of time, each frame predicted from the true frames
before it. Frames to look at are picked by the error of persistence, which favours no model: those
at its 5th, 50th and 95th percentile over the test part.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.measure import Frames, Measure
from pibert.evaluation.measures import frame_measures, standardised_measures
from pibert.evaluation.official import Official
from pibert.evaluation.pointwise import frame_errors
from pibert.evaluation.probes import body_extent, probe_series
from pibert.evaluation.regions import drag_proxies
from pibert.evaluation.temporal import Temporal, correlation_time
from pibert.fields import FieldSpec, Normalizer, Trajectory, read_mask
from pibert.predictor import Predictor

QUANTILES = (0.05, 0.5, 0.95)
PICK_RULE = "frames at the 5th, 50th and 95th percentile of the error of persistence"
STRIP = 12
"""Frames one after the other that are kept, beginning at the median pick."""
CHUNK = 128
"""Frames that are judged at once."""
SHORTEST = 20
"""Frames without a gap below which nothing is said of the behaviour in time, and the windows that
RealPDEBench's metrics are of; here their frames are predicted one by one."""
PHYSICAL, STANDARDISED = "physical", "standardised"


@dataclass(frozen=True, eq=False)
class Judged:
    """What came of all test frames."""

    arrays: dict[str, Tensor]
    entries: dict[str, list[dict[str, str]]]
    """Of every ``space/measure``, as plain JSON."""
    values: dict[str, list[float | None]]
    """Of every ``space/measure``, in the order of its entries; None where nothing can be said."""
    correlation_frames: float | None
    """Correlation time of the true flow at the probes, in frames; None: longer than seen."""


def judge(predictor: Predictor, samples: Samples) -> Judged:
    """Score the next frame of every window of the samples.

    Args:
        predictor: Of one or more frames ahead; its first one counts.
        samples: Test windows of one frame ahead. Their history may be longer than the predictor's,
            so that models with different histories are judged on the same frames.
    """
    taken = predictor.history
    if samples.window.history < taken or samples.window.horizon != 1:
        raise ValueError(
            f"expected windows of at least {taken} frames and one to predict, found "
            f"{samples.window}"
        )
    measures = measures_by_space(
        samples.spec,
        predictor.normalizer,
        has_body=any(trajectory.body is not None for trajectory in samples.trajectories),
        length_unit=samples.trajectories[0].length_unit,
    )
    if max(map(len, sequences(samples))) < SHORTEST:
        measures[PHYSICAL] = tuple(m for m in measures[PHYSICAL] if not m.of_sequences)
    terms: dict[str, list[Tensor]] = {}
    kept: dict[str, list[Tensor]] = {}
    for piece in sequences(samples):
        frames, standard = _predicted(predictor, samples, piece)
        for space, own in ((PHYSICAL, frames), (STANDARDISED, standard)):
            for measure in measures[space]:
                rows = _terms(measure, own)
                terms.setdefault(f"terms/{space}/{measure.name}", []).append(rows)
        _keep(kept, frames, samples, piece, predictor.normalizer)
    arrays = {name: torch.cat(rows) for name, rows in (terms | kept).items()}
    named = {f"{space}/{m.name}": m for space, group in measures.items() for m in group}
    entries = {name: [vars_of(entry) for entry in own.entries] for name, own in named.items()}
    values = {
        name: [v if math.isfinite(v) else None for v in own.values(sums).tolist()]
        for name, own in named.items()
        for sums in (arrays[f"terms/{name}"].sum(0),)
    }
    arrays |= _pictures(predictor, samples, arrays["errors/last"])
    times = arrays.pop("correlation")
    known = times[times.isfinite()]
    time = float(known.max()) if len(known) else None
    return Judged(arrays, entries, values, time)


def vars_of(entry: Any) -> dict[str, str]:
    """An entry as plain JSON."""
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__}


def sequences(samples: Samples) -> Iterator[list[int]]:
    """The windows of every stretch of a trajectory without a gap, in the order of time."""
    piece: list[int] = []
    last: tuple[int, int] | None = None
    for number in range(len(samples)):
        trajectory, frame = samples.locate(number)
        if last is not None and (trajectory, frame) != (last[0], last[1] + 1):
            yield piece
            piece = []
        piece.append(number)
        last = (trajectory, frame)
    if piece:
        yield piece


def measures_by_space(
    spec: FieldSpec, normalizer: Normalizer, *, has_body: bool, length_unit: str | None
) -> dict[str, tuple[Measure, ...]]:
    """The measures of fields, in physical and in standardised units."""
    physical = frame_measures(spec, normalizer, has_body=has_body, length_unit=length_unit)
    if spec.velocity is not None:
        physical = (*physical, Temporal(spec=spec), Official(spec=spec, frames=SHORTEST))
    return {PHYSICAL: physical, STANDARDISED: standardised_measures(spec, has_body=has_body)}


def _terms(measure: Measure, frames: Frames) -> Tensor:
    if measure.of_sequences:
        return measure.terms(frames).cpu()
    parts = [measure.terms(part).cpu() for part in _chunks(frames)]
    return torch.cat(parts)


def _chunks(frames: Frames) -> Iterator[Frames]:
    for start in range(0, len(frames.truth), CHUNK):
        part = slice(start, start + CHUNK)
        yield replace(
            frames,
            prediction=frames.prediction[part],
            truth=frames.truth[part],
            last=frames.last[part],
            known=frames.known[part],
            body=None if frames.body is None else frames.body[part],
        )


class Seen(NamedTuple):
    """What a model sees of some windows, and what follows; standardised."""

    x: Tensor
    parameters: Tensor
    mask: Tensor
    truth: Tensor
    known: Tensor


def seen_by(predictor: Predictor, samples: Samples, numbers: Sequence[int]) -> Seen:
    """What a predictor sees of windows one after the other: the last frames, as many as it takes.

    Older frames of the windows are not its own, and neither is what was unknown in them.
    """
    trajectory, first = samples.locate(numbers[0])
    begin, count = first + samples.window.history - predictor.history, len(numbers)
    stop = first + samples.window.history + count
    fields, known = samples.read(trajectory, slice(begin, stop))
    past = [slice(frame, frame + count) for frame in range(predictor.history)]
    seen = Seen(
        x=torch.stack([fields[frames] for frames in past], dim=1).flatten(1, 2),
        parameters=samples.parameters[trajectory].expand(count, -1),
        mask=torch.stack([known[frames] for frames in past]).all(0),
        truth=fields[predictor.history :],
        known=known[predictor.history :],
    )
    return Seen(*(value.to(predictor.device) for value in seen))


@torch.no_grad()
def _predicted(
    predictor: Predictor, samples: Samples, numbers: Sequence[int]
) -> tuple[Frames, Frames]:
    """The frames after some windows of one trajectory, in physical and in standardised units."""
    channels = len(samples.spec.channels)
    parts = []
    for start in range(0, len(numbers), CHUNK):
        seen = seen_by(predictor, samples, numbers[start : start + CHUNK])
        found = predictor.model(seen.x, seen.parameters, seen.mask)[:, :channels]
        if not bool(found.isfinite().all()):
            raise ValueError(
                f"expected finite predictions, found others among samples "
                f"{numbers[start]} to {numbers[start] + len(found) - 1}; train the model again"
            )
        parts.append((found, seen.truth, seen.x[:, -channels:], seen.known))
    prediction, truth, last, known = (torch.cat(group) for group in zip(*parts, strict=True))
    trajectory = samples.trajectories[samples.locate(numbers[0])[0]]
    first = samples.locate(numbers[0])[1] + samples.window.history
    body = _body(trajectory, slice(first, first + len(numbers)), predictor.device)
    standard = Frames(
        prediction=prediction, truth=truth, last=last, known=known, body=body, spec=samples.spec
    )
    physical = {
        name: predictor.normalizer.invert(getattr(standard, name))
        for name in ("prediction", "truth", "last")
    }
    spec = _own_spec(samples.spec, trajectory)
    return replace(standard, **physical, spec=spec), standard


def _body(trajectory: Trajectory, frames: slice, device: torch.device) -> Tensor | None:
    if trajectory.body is None:
        return None
    mask = read_mask(trajectory.body, frames).to(device)
    return mask if mask.ndim == 3 else mask.expand(frames.stop - frames.start, *mask.shape)


def _own_spec(common: FieldSpec, trajectory: Trajectory) -> FieldSpec:
    """What is predicted, with the time step and the scales of the trajectory itself."""
    own = trajectory.spec
    spec = replace(
        common,
        dt=own.dt,
        reference_velocity=own.reference_velocity,
        reference_length=own.reference_length,
        viscosity=own.viscosity,
    )
    reynolds = trajectory.parameters.get("Re")
    if spec.reference_velocity is None and reynolds and spec.viscosity and spec.reference_length:
        speed = reynolds * spec.viscosity / spec.reference_length
        spec = replace(spec, reference_velocity=speed)
    return spec


def _keep(
    kept: dict[str, list[Tensor]],
    frames: Frames,
    samples: Samples,
    numbers: Sequence[int],
    normalizer: Normalizer,
) -> None:
    """What is remembered of a sequence beside its terms."""
    trajectory, first = samples.locate(numbers[0])
    count = len(numbers)
    still = replace(frames, prediction=frames.last)
    own = {
        "rows/trajectory": torch.full((count,), trajectory),
        "rows/frame": torch.arange(first, first + count) + samples.window.history,
        "sequences/trajectory": torch.tensor([trajectory]),
        "errors/prediction": frame_errors(frames, normalizer).cpu(),
        "errors/last": frame_errors(still, normalizer).cpu(),
    }
    series = probe_series(frames)
    time = correlation_time(series.truth.flatten(1)) if series.places else None
    own["correlation"] = torch.tensor([torch.nan if time is None else float(time)])
    if frames.spec.velocity is not None:
        if "probes/truth" not in kept:  # of the first sequence
            own |= {
                "probes/places": torch.as_tensor(series.places).cpu(),
                "probes/truth": series.truth.cpu(),
                "probes/prediction": series.prediction.cpu(),
            }
        if frames.body is not None and body_extent(frames) is not None:
            prediction, truth = drag_proxies(frames)
            own |= {"drag/prediction": prediction.cpu(), "drag/truth": truth.cpu()}
    for name, value in own.items():
        kept.setdefault(name, []).append(value)


def _pictures(predictor: Predictor, samples: Samples, errors: Tensor) -> dict[str, Tensor]:
    """Frames to look at: picked ones, and some one after the other from the median one on."""
    order = errors.argsort()  # frames without energy, which have no error, come last
    order = order[: max(1, int(errors.isfinite().sum()))]
    rows = [int(order[round(share * (len(order) - 1))]) for share in QUANTILES]
    found = [_predicted(predictor, samples, [row])[0] for row in rows]
    arrays = {"picks/rows": torch.tensor(rows)}
    for name in ("truth", "prediction", "last", "known"):
        arrays[f"picks/{name}"] = torch.cat([getattr(frames, name) for frames in found]).cpu()
    piece = next(piece for piece in sequences(samples) if rows[1] in piece)
    begin = min(piece.index(rows[1]), max(0, len(piece) - STRIP))
    strip = piece[begin : begin + STRIP]
    frames = _predicted(predictor, samples, strip)[0]
    arrays["strip/rows"] = torch.tensor(strip)
    arrays["strip/truth"] = frames.truth.half().cpu()
    arrays["strip/prediction"] = frames.prediction.half().cpu()
    arrays["strip/known"] = frames.known.cpu()
    return arrays
