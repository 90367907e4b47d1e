"""Options and weights of earlier versions under their present names."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_OPTIONS = {"modes": "fourier_modes", "frame": "wavelet", "frame_levels": "wavelet_levels"}
_VALUES = {("branches", "frame"): "wavelet", ("wavelet", "angle"): "trained"}
_DROPPED = {"evaluation": ("dft", "fft"), "relative_bias": (False,)}
"""Options that are gone, and the values without which a model computes the same."""
_WEIGHTS = {
    "encoder.frame.frame.": "encoder.wavelet.transform.",
    "encoder.frame.": "encoder.wavelet.",
    "modes.": "pod_modes.",
}
"""Beginnings of names."""


def current_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model, from a configuration or a saved model of any version."""
    if name != "pibert":
        return dict(options)
    found = {}
    for old, value in options.items():
        if old in _DROPPED and value in _DROPPED[old]:
            continue
        key = _OPTIONS.get(old, old)
        found[key] = _VALUES.get((key, value), value) if isinstance(value, str) else value
    return found


def current_weights(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of weights, of a saved model or a state of any version."""
    if name != "pibert":
        return dict(tensors)
    found = {}
    for old, tensor in tensors.items():
        start = next((start for start in _WEIGHTS if old.startswith(start)), "")
        found[_WEIGHTS.get(start, "") + old.removeprefix(start)] = tensor
    return found
