"""Files of the small waves as a user may send them."""

import io
import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from tests.trust.flows import BODY, flows

STATED = {"channels": ["u", "v"], "units": ["1", "1"], "dt": 0.1, "dx": 0.3, "dy": 0.2}


def frames(count: int = 6) -> np.ndarray:
    return np.where(BODY.numpy(), 0, flows(1, seed=5)[0].read(slice(0, count)).numpy())


def as_npy(fields: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, fields)
    return file.getvalue()


def stating(fields: np.ndarray, **facts: Any) -> bytes:
    """As safetensors with ``STATED``, or other facts."""
    texts = {name: json.dumps(fact) for name, fact in (STATED | facts).items()}
    return save({"fields": np.ascontiguousarray(fields, np.float32)}, texts)
