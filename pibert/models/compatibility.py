"""Options and weights of earlier versions under their present names."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_PIBERT = ("pibert", "pibert-mr")
_OPTIONS = {"modes": "fourier_modes", "frame": "wavelet", "frame_levels": "wavelet_levels"}
"""Renamed options of PIBERT."""
_VALUES = {("branches", "frame"): "wavelet", ("wavelet", "angle"): "trained"}
_REMOVED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "pibert": {
        "evaluation": ("dft", "fft"),
        "relative_bias": (False,),
        "fold": (True, False),
        "in_channels": (None,),
        "out_channels": (None,),
    },
    "fourierflow": {
        "cond": ("crossattn+add",),
        "freq_weight": ("magnitude",),
        "trained_lambda": (True,),
        "detached_mixing": (False,),
    },
    "fourierflow-det": {
        "freq_weight": ("magnitude",),
        "trained_lambda": (True,),
        "detached_mixing": (False,),
    },
    "unet": {"kernel": (7,), "expansion": (4,), "layer_scale": (1.0,)},
    "transolver": {"temperature": (0.5,)},
    "mwt": {"levels": (None,)},
    "mean-advection": {"interpolation": ("cubic",)},
    "dmd": {"energy": (None,)},
}
"""Removed options, and the values with which a model computes the same as now."""
_WEIGHTS = {
    "encoder.frame.frame.": "encoder.wavelet.transform.",
    "encoder.frame.": "encoder.wavelet.",
    "modes.": "pod_modes.",
}
"""Prefixes of renamed weights of PIBERT."""


def current_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model, from a configuration or a model file of any version."""
    removed = _REMOVED.get(name, {})
    kept = {key: value for key, value in options.items() if value not in removed.get(key, ())}
    if name not in _PIBERT:
        return kept
    renamed = {_OPTIONS.get(key, key): value for key, value in kept.items()}
    return {
        key: _VALUES.get((key, value), value) if isinstance(value, str) else value
        for key, value in renamed.items()
    }


def current_weights(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model file or training state of any version by their names."""
    if name not in _PIBERT:
        return dict(tensors)
    current = {}
    for old, tensor in tensors.items():
        prefix = next((prefix for prefix in _WEIGHTS if old.startswith(prefix)), "")
        current[_WEIGHTS.get(prefix, "") + old.removeprefix(prefix)] = tensor
    return current
