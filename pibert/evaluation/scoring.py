"""Scores of a predictor on test frames: terms of all measures, and frames for figures.

Every frame is predicted from the true frames before it, by ``Predictor.run`` as in ``pibert
predict``: scores and predictions have the same precision. Frames to show are picked by the error of
persistence, which favours no model: those at its 5th, 50th and 95th percentile over the test split.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.measure import Entry, Frames, Measure
from pibert.evaluation.measures import PHYSICAL, SHORTEST, STANDARDISED, measures_by_space
from pibert.evaluation.official import in_windows, mean_window
from pibert.evaluation.pointwise import frame_errors
from pibert.evaluation.temporal import correlation_time, probe_series
from pibert.fields import FieldSpec, Normalizer, Trajectory, read_mask
from pibert.inference import Predictor

QUANTILES = (0.05, 0.5, 0.95)
PICK_RULE = "frames at the 5th, 50th and 95th percentile of the error of persistence"
STRIP = 12
"""Consecutive frames that are kept, beginning at the median pick."""
CHUNK = 128
"""Frames that are scored at once."""


@dataclass(frozen=True, eq=False)
class FrameScores:
    """Scores of all test frames."""

    arrays: dict[str, Tensor]
    entries: dict[str, list[dict[str, str]]]
    """Of every ``space/measure``, as plain JSON."""
    values: dict[str, list[float | None]]
    """Of every ``space/measure``, in the order of its entries; None where undefined."""
    correlation_frames: float | None
    """Correlation time of the true flow at the probes, in scored frames; None: longer than seen."""


def score_frames(predictor: Predictor, samples: Samples) -> FrameScores:
    """Score the next frame of every window of the samples, which are of one frame ahead.

    Their history may be longer than the predictor's, so that models with different histories are
    scored on the same frames.
    """
    if samples.window.history < predictor.history or samples.window.horizon != 1:
        raise ValueError(
            f"expected windows of at least {predictor.history} frames and one to predict, found "
            f"{samples.window}"
        )
    measures = measures_by_space(
        samples.spec,
        predictor.normalizer,
        has_body=any(trajectory.body is not None for trajectory in samples.trajectories),
        length_unit=samples.trajectories[0].length_unit,
        mean=_mean_window(samples),
    )
    if max(map(len, sequences(samples))) < SHORTEST:
        measures[PHYSICAL] = tuple(m for m in measures[PHYSICAL] if not m.of_sequences)
    terms: dict[str, list[Tensor]] = {}
    kept: dict[str, list[Tensor]] = {}
    for pieces in _by_trajectory(samples):
        frames, standard = _predicted(predictor, samples, [n for piece in pieces for n in piece])
        for space, fields in ((PHYSICAL, frames), (STANDARDISED, standard)):
            for measure in measures[space]:
                rows = _terms(measure, fields, pieces)
                terms.setdefault(f"terms/{space}/{measure.name}", []).append(rows)
        _keep(kept, frames, samples, pieces, predictor.normalizer)
    arrays = {name: torch.cat(rows) for name, rows in (terms | kept).items()}
    named = {f"{space}/{m.name}": m for space, group in measures.items() for m in group}
    entries = {
        name: [vars_of(entry) for entry in measure.entries] for name, measure in named.items()
    }
    values = {
        name: [v if math.isfinite(v) else None for v in measure.values(sums).tolist()]
        for name, measure in named.items()
        for sums in (arrays[f"terms/{name}"].sum(0),)
    }
    arrays |= _pictures(predictor, samples, arrays["errors/last"])
    times = arrays.pop("correlation")
    known = times[times.isfinite()]
    time = float(known.max()) if len(known) else None
    return FrameScores(arrays, entries, values, time)


def vars_of(entry: Entry) -> dict[str, str]:
    """An entry as plain JSON."""
    return asdict(entry)


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


def _by_trajectory(samples: Samples) -> Iterator[list[list[int]]]:
    """The sequences of each trajectory, which are scored together: there may be one per frame."""
    home = itertools.groupby(sequences(samples), lambda piece: samples.locate(piece[0])[0])
    return (list(pieces) for _, pieces in home)


def _mean_window(samples: Samples) -> Tensor | None:
    """The mean over the windows that RealPDEBench's metrics are of; None where there are none."""

    def windows() -> Iterator[Tensor]:
        for piece in sequences(samples):
            number, first = samples.locate(piece[0])
            trajectory, begin = samples.trajectories[number], first + samples.window.history
            for start in range(begin, begin + len(piece) - SHORTEST + 1, SHORTEST):
                frames = slice(start, start + SHORTEST)
                fields = trajectory.read(frames)
                known = trajectory.measured(frames).to(fields.device)
                yield in_windows(torch.where(known[:, None], fields, 0.0), SHORTEST)

    if samples.spec.velocity is None or max(map(len, sequences(samples))) < SHORTEST:
        return None
    return mean_window(windows())


def _terms(measure: Measure, frames: Frames, pieces: Sequence[Sequence[int]]) -> Tensor:
    if measure.of_sequences:
        chunks = _split(frames, pieces)
    else:
        starts = range(0, len(frames.truth), CHUNK)
        chunks = (frames[start : start + CHUNK] for start in starts)
    return torch.cat([measure.terms(chunk).cpu() for chunk in chunks])


def _split(frames: Frames, pieces: Sequence[Sequence[int]]) -> Iterator[Frames]:
    """The frames of each sequence."""
    start = 0
    for piece in pieces:
        yield frames[start : start + len(piece)]
        start += len(piece)


class Seen(NamedTuple):
    """The input of a model for some windows, and the frame that follows; standardised."""

    x: Tensor
    parameters: Tensor
    mask: Tensor
    truth: Tensor
    known: Tensor
    """Where the truth was measured."""


def seen_by(predictor: Predictor, samples: Samples, numbers: Sequence[int]) -> Seen:
    """The input of a predictor for windows of a trajectory: their last frames.

    Older frames of the windows, and what was unknown in them, do not reach it.
    """
    trajectory, target = _targets(samples, numbers)
    # One read for all windows: sequences of a frame or two would be read one by one.
    begin = int(target.min()) - predictor.history
    fields, known, measured = samples.read(trajectory, slice(begin, int(target.max()) + 1))
    past = [(target - begin - ago).to(fields.device) for ago in range(predictor.history, 0, -1)]
    now = (target - begin).to(fields.device)
    seen = Seen(
        x=torch.stack([fields[frames] for frames in past], dim=1).flatten(1, 2),
        parameters=samples.parameters[trajectory].expand(len(numbers), -1),
        mask=torch.stack([known[frames] for frames in past]).all(0),
        truth=fields[now],
        known=measured[now],
    )
    return Seen(*(value.to(predictor.device) for value in seen))


def _targets(samples: Samples, numbers: Sequence[int]) -> tuple[int, Tensor]:
    """The trajectory of some windows, and the frame of it that follows each."""
    starts = [samples.locate(number) for number in numbers]
    return starts[0][0], torch.tensor([first for _, first in starts]) + samples.window.history


@torch.no_grad()
def _predicted(
    predictor: Predictor, samples: Samples, numbers: Sequence[int]
) -> tuple[Frames, Frames]:
    """The frames after some windows of one trajectory, in physical and in standardised units."""
    channels = len(samples.spec.channels)
    chunks = []
    for start in range(0, len(numbers), CHUNK):
        seen = seen_by(predictor, samples, numbers[start : start + CHUNK])
        output = predictor.run(predictor.model, seen.x, seen.parameters, seen.mask)[:, :channels]
        if not bool(output.isfinite().all()):
            raise ValueError(
                f"expected finite predictions, found others among samples "
                f"{numbers[start]} to {numbers[start] + len(output) - 1}; train the model again"
            )
        chunks.append((output, seen.truth, seen.x[:, -channels:], seen.known))
    prediction, truth, last, known = (torch.cat(group) for group in zip(*chunks, strict=True))
    home, target = _targets(samples, numbers)
    trajectory = samples.trajectories[home]
    body = body_at(trajectory, target, predictor.device)
    standard = Frames(
        prediction=prediction, truth=truth, last=last, known=known, body=body, spec=samples.spec
    )
    physical: dict[str, Any] = {
        name: predictor.normalizer.invert(getattr(standard, name))
        for name in ("prediction", "truth", "last")
    }
    spec = own_spec(samples.spec, trajectory)
    return replace(standard, **physical, spec=spec), standard


def body_at(trajectory: Trajectory, frames: Tensor, device: torch.device) -> Tensor | None:
    """Where a trajectory is solid in some frames; None without a body."""
    if trajectory.body is None:
        return None
    begin = int(frames.min())
    mask = read_mask(trajectory.body, slice(begin, int(frames.max()) + 1))
    if mask.ndim == 2:
        return mask.to(device).expand(len(frames), *mask.shape)
    return mask[(frames - begin).to(mask.device)].to(device)


def own_spec(common: FieldSpec, trajectory: Trajectory) -> FieldSpec:
    """The spec of the predicted fields with the time step and scales of a trajectory."""
    source = trajectory.spec
    spec = replace(
        common,
        dt=source.dt,
        reference_velocity=source.reference_velocity,
        reference_length=source.reference_length,
        viscosity=source.viscosity,
    )
    reynolds = trajectory.parameters.get("Re")
    if spec.reference_velocity is None and reynolds and spec.viscosity and spec.reference_length:
        speed = reynolds * spec.viscosity / spec.reference_length
        spec = replace(spec, reference_velocity=speed)
    if spec.viscosity is None and reynolds and spec.reference_velocity and spec.reference_length:
        spec = replace(spec, viscosity=spec.reference_velocity * spec.reference_length / reynolds)
    return spec


def _keep(
    kept: dict[str, list[Tensor]],
    frames: Frames,
    samples: Samples,
    pieces: Sequence[Sequence[int]],
    normalizer: Normalizer,
) -> None:
    """Keep what figures and intervals need of a trajectory beside the terms."""
    trajectory, target = _targets(samples, [number for piece in pieces for number in piece])
    still = replace(frames, prediction=frames.last)
    more = {
        "rows/trajectory": torch.full((len(target),), trajectory),
        "rows/frame": target,
        "sequences/trajectory": torch.full((len(pieces),), trajectory),
        "errors/prediction": frame_errors(frames, normalizer).cpu(),
        "errors/last": frame_errors(still, normalizer).cpu(),
        "correlation": torch.full((len(pieces),), torch.nan),
    }
    # Frames that all stand alone, as in pairs, are one series, but not one a step apart to show.
    alone = len(pieces) == len(target)
    for number, piece in enumerate([frames] if alone else _split(frames, pieces)):
        if len(piece.truth) < 2:
            continue
        series = probe_series(piece)
        time = correlation_time(series.truth.flatten(1)) if series.probes else None
        more["correlation"][number] = torch.nan if time is None else time
        first = frames.spec.velocity is not None and "probes/truth" not in {**kept, **more}
        if first and not alone:
            more |= {
                "probes/places": torch.as_tensor(series.probes).cpu(),
                "probes/truth": series.truth.cpu(),
                "probes/prediction": series.prediction.cpu(),
            }
    for name, value in more.items():
        kept.setdefault(name, []).append(value)


def _pictures(predictor: Predictor, samples: Samples, errors: Tensor) -> dict[str, Tensor]:
    """Frames for figures: picked ones, and consecutive ones from the median one on."""
    order = errors.argsort()  # frames without energy, which have no error, come last
    order = order[: max(1, int(errors.isfinite().sum()))]
    rows = [int(order[round(share * (len(order) - 1))]) for share in QUANTILES]
    picked = [_predicted(predictor, samples, [row])[0] for row in rows]
    arrays = {"picks/rows": torch.tensor(rows)}
    for name in ("truth", "prediction", "last", "known"):
        arrays[f"picks/{name}"] = torch.cat([getattr(frames, name) for frames in picked]).cpu()
    piece = next(piece for piece in sequences(samples) if rows[1] in piece)
    begin = min(piece.index(rows[1]), max(0, len(piece) - STRIP))
    strip = piece[begin : begin + STRIP]
    frames = _predicted(predictor, samples, strip)[0]
    arrays["strip/rows"] = torch.tensor(strip)
    arrays["strip/truth"] = frames.truth.half().cpu()
    arrays["strip/prediction"] = frames.prediction.half().cpu()
    arrays["strip/known"] = frames.known.cpu()
    return arrays
