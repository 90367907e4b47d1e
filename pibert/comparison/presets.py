"""Comparisons by name.

``quick`` shows in a minute that everything runs; ``demo`` ranks all models on small wakes with two
cores, ``tour`` some of them in the same way; the others are for a GPU: the paper's two benchmarks
on simulated flows, and a measured jet.
"""

from dataclasses import replace
from typing import Any

from pibert.comparison.plan import Comparison, Entrant, RolloutPlan
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig, ModelConfig, Weights
from pibert.models import PRESETS as MODEL_PRESETS
from pibert.pretraining.masks import Masking
from pibert.training.engine import FitConfig, Hardware

REFERENCES = ("persistence", "training-mean", "linear-extrapolation", "mean-advection", "dmd")
"""What a model must beat; none of them is trained."""
RIVALS = ("unet", "transolver", "mwt")
AUTOENCODING = Masking(kinds=("blocks",), block=4, ratio=0.75, removed=1.0, noised=0.0)
"""How the auto-encoder that FourierFlow aligns to is trained."""


def _entrant(name: str, preset: str | None = None, /, **options: Any) -> Entrant:
    """A model that knows what PIBERT knows: the flow's parameters and the coordinates."""
    known = next(iter(MODEL_PRESETS[name].values())).__dataclass_fields__
    options = {key: True for key in ("parameters", "coordinates") if key in known} | options
    return Entrant(model=ModelConfig(name=name, preset=preset, options=options))


def _flow(**options: Any) -> Entrant:
    """FourierFlow with its auto-encoder trained first, which takes a fifth of its samples."""
    return replace(
        _entrant("fourierflow", None, **options),
        pretraining=0.2,
        pretraining_weights=Weights(supervised=0.0, mpp=1.0, ecp=0.0),
        masking=AUTOENCODING,
        ema=0.99,
    )


def _references() -> dict[str, Entrant]:
    return {name: _entrant(name) for name in REFERENCES}


def _published() -> dict[str, Entrant]:
    """PIBERT, its multiresolution form, the paper's baselines as published, rivals of its size."""
    return {
        "pibert": replace(_entrant("pibert"), pretraining=0.2),
        "pibert-mr": _entrant("pibert-mr", "base"),
        "pibert-mr-large": _entrant("pibert-mr", "large"),
        "fno2d": _entrant("fno2d"),
        "fno2d-modes16": _entrant("fno2d", "modes16"),
        "deeponet2d": _entrant("deeponet2d"),
        "pitt": _entrant("pitt"),
        "fourierflow": _flow(),
        "fourierflow-det": _entrant("fourierflow-det"),
        "pinn": _entrant("pinn"),
        **{name: _entrant(name) for name in RIVALS},
        **_references(),
    }


def _ablations() -> dict[str, Entrant]:
    """Is it PIBERT's encoder, bias or pretraining, PITT's text or its base, FNO's wrapping?"""
    return {
        "pibert-scratch": _entrant("pibert"),
        "pibert-fourier": _entrant("pibert", branches="fourier"),
        "pibert-frame": _entrant("pibert", branches="frame"),
        "pibert-unbiased": _entrant("pibert", attention_bias=0.0),
        "pitt-constant": _entrant("pitt-constant"),
        "pitt-base": _entrant("pitt", updates=0),
        "fno2d-padded": _entrant("fno2d", padding=8),
    }


def _small() -> dict[str, Entrant]:
    """All models, small enough for two cores."""
    tokens = {"width": 48, "heads": 4, "depth": 2}
    return {
        "pibert": replace(_entrant("pibert", None, **tokens, modes=12), pretraining=0.2),
        "pibert-mr": _entrant("pibert-mr", "small"),
        "fno2d": _entrant("fno2d", width=20),
        "deeponet2d": _entrant("deeponet2d"),
        "pitt": _entrant("pitt"),
        "fourierflow": _flow(width=32, depth=3, align_at=2, draws=2, sampler_steps=4),
        "fourierflow-det": _entrant("fourierflow-det", width=48, depth=3),
        "pinn": _entrant("pinn"),
        "unet": _entrant("unet", "small", width=12),
        "transolver": _entrant("transolver", "small", width=32),
        "mwt": _entrant("mwt", "small", blocks=2, kernel_width=32, levels=3),
        **_references(),
    }


_WAKES = DataConfig(
    case="cylinder", preset="demo", channels=("u", "v"), shares=Shares(train=0.6, valid=0.15)
)
_GPU = FitConfig(
    micro_batch=None,
    optimizer="adamw",
    learning_rate=1e-3,
    monitor="reconstruction",
)
_JET = DataConfig(
    path="data/jet_piv_train.npz",
    hints={"unit": "m/s", "family": "incompressible"},
    split="time",
    guard=40,
    shares=Shares(train=0.7, valid=0.15),
)


def _on_gpu(data: dict[str, DataConfig], samples: int, batch_size: int = 64) -> Comparison:
    return Comparison(
        data=data,
        entrants=_published() | _ablations(),
        samples=samples,
        training=replace(_GPU, batch_size=batch_size),
        rollout=RolloutPlan(steps=40, starts=32),
        hardware=Hardware(precision="bf16"),
    )


def _in_pairs(data: dict[str, DataConfig], samples: int) -> Comparison:
    plan = _on_gpu(data, samples)
    entrants = {n: e for n, e in plan.entrants.items() if n != "linear-extrapolation"}
    return replace(plan, entrants=entrants, rollout=RolloutPlan(steps=0))


_DEMO = Comparison(data={"wakes": _WAKES}, entrants=_small(), samples=6_000)
_TOUR = ("pibert", "fno2d", "deeponet2d", "unet", *REFERENCES)


PRESETS: dict[str, Comparison] = {
    "demo": _DEMO,
    "tour": replace(_DEMO, entrants={n: e for n, e in _DEMO.entrants.items() if n in _TOUR}),
    "quick": Comparison(
        data={
            "wakes": replace(
                _WAKES,
                recipe={"samples": 6, "group": 3, "frames": 24, "warm_up": 4.0},
                shares=Shares(train=0.5, valid=0.17),
            )
        },
        entrants={
            "pibert": replace(
                _entrant("pibert", width=16, heads=2, depth=1, modes=6), pretraining=0.3
            ),
            "fno2d": _entrant("fno2d", width=8, depth=2),
            "unet": _entrant("unet", width=4),
            **_references(),
        },
        samples=200,
        rollout=RolloutPlan(steps=4, starts=2),
    ),
    "cylinder": _on_gpu(
        {
            "cylinder": DataConfig(
                case="cylinder",
                preset="realpdebench-like",
                channels=("u", "v"),
                size=(64, 64),
                shares=Shares(train=73 / 92, valid=9 / 92),
            )
        },
        400_000,
    ),
    # Its frames come in pairs: nothing can be rolled out, or extrapolated from two of them.
    "fsi": _in_pairs(
        {
            "fsi": DataConfig(
                case="tandem",
                preset="fsi-like",
                channels=("u", "v"),
                size=(64, 64),
                shares=Shares(train=0.6, valid=0.2),
                group_by=("Re", "mass_ratio"),  # conditions recur, and are judged unseen
            )
        },
        400_000,
    ),
    # Few frames: with large batches there would be few steps before it is known by heart.
    "jet": _on_gpu({"jet": _JET}, 150_000, batch_size=32),
}
"""Comparisons by name; the first is for two cores."""


def find_comparison(name: str) -> Comparison:
    """A comparison by its name."""
    if name not in PRESETS:
        raise ValueError(f"unknown comparison {name!r}; choose from: {', '.join(PRESETS)}")
    return PRESETS[name]
