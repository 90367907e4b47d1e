"""Files of the small waves as a user may send them, and streams of answers."""

import io
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors.numpy import save

from pibert.serve.schemas import PredictRequest
from tests.inference import small
from tests.inference.flows import BODY, flows

STATED = {"channels": ["u", "v"], "units": ["1", "1"], "dt": 0.1, "dx": 0.3, "dy": 0.2}


def frames(count: int = 6) -> np.ndarray:
    return np.where(BODY.numpy(), 0, flows(1, seed=5)[0].read(slice(0, count)).numpy())


def as_npy(fields: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, fields)
    return file.getvalue()


def blocks_of(stream: bytes) -> Iterator[bytes]:
    """The blocks of a binary rollout; it must have its end."""
    place = 0
    while length := struct.unpack_from("<I", stream, place)[0]:
        yield stream[place + 4 : place + 4 + length]
        place += 4 + length
    assert place + 4 == len(stream), "the stream was cut"


def stating(fields: np.ndarray, **facts: Any) -> bytes:
    """As safetensors with ``STATED``, or other facts."""
    texts = {name: json.dumps(fact) for name, fact in (STATED | facts).items()}
    return save({"fields": np.ascontiguousarray(fields, np.float32)}, texts)


def rollout(samples: int = 1, steps: int = 3, seed: int = 0, **changes: Any) -> PredictRequest:
    """A request to the model that is called wake."""
    given: dict[str, Any] = {
        "fields": small.frames(samples, seed=seed).numpy(),
        "parameters": {"Re": math.nan},
    } | changes
    return PredictRequest(route="rollout", steps=steps, **given)
