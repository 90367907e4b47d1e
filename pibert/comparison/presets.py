"""Comparisons by name.

``quick`` checks in a minute that everything runs; ``demo`` ranks all models on small wakes with two
cores, ``tour`` some of them; the others are for a GPU: the paper's two benchmarks on simulated
flows, a measured jet, and two benchmarks that others defined (``solver/vorticity.py``).
"""

from dataclasses import replace
from typing import Any

from pibert.comparison.plan import Candidate, Comparison, RolloutPlan, Tuning
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig, ModelConfig, Weights
from pibert.models import all_inputs
from pibert.pretraining.masks import Masking
from pibert.training.engine import FitConfig, Hardware

REFERENCES = ("persistence", "training-mean", "linear-extrapolation", "mean-advection", "dmd")
"""References that a model must beat; none of them is trained."""
RIVALS = ("unet", "transolver", "mwt", "mwt-published", "pde-transformer", "flowers")
AUTOENCODING = Masking(kinds=("blocks",), block=4, ratio=0.75, removed=1.0, noised=0.0)
"""Masking that trains the auto-encoder that FourierFlow aligns to."""


def _candidate(name: str, preset: str | None = None, /, **options: Any) -> Candidate:
    """A model with the inputs of PIBERT: the flow's parameters, coordinates and known points."""
    options = all_inputs(name) | options
    return Candidate(model=ModelConfig(name=name, preset=preset, options=options))


def _flow(**options: Any) -> Candidate:
    """FourierFlow; its auto-encoder is trained first, with a fifth of the samples."""
    return replace(
        _candidate("fourierflow", None, **options),
        pretraining=0.2,
        pretraining_weights=Weights(supervised=0.0, mpp=1.0, ecp=0.0),
        masking=AUTOENCODING,
        ema=0.99,
    )


def _references() -> dict[str, Candidate]:
    return {name: _candidate(name) for name in REFERENCES}


def _published() -> dict[str, Candidate]:
    """PIBERT, its multiresolution form, the paper's baselines as published, rivals of its size."""
    return {
        "pibert": replace(_candidate("pibert"), pretraining=0.2),
        "pibert-mr": _candidate("pibert-mr", "base"),
        "pibert-mr-large": _candidate("pibert-mr", "large"),
        "fno2d": _candidate("fno2d"),
        "fno2d-modes16": _candidate("fno2d", "modes16"),
        "deeponet2d": _candidate("deeponet2d"),
        "pitt": _candidate("pitt"),
        "fourierflow": _flow(),
        "fourierflow-det": _candidate("fourierflow-det"),
        "pinn": _candidate("pinn"),
        **{name: _candidate(name) for name in RIVALS},
        "unet-4.3g": _candidate("unet", "flops-4.3g-5m"),
        **_references(),
    }


def _ablations() -> dict[str, Candidate]:
    """PIBERT's branches, bias and pretraining, PITT's text and base, FNO's padding.

    MWT and U-Net with the equation terms of ``pibert-mr``, and ``pibert-mr`` without them, show
    what these terms are worth, the U-Net that corrects DMD what that skip is worth in another
    model.
    """
    return {
        "pibert-scratch": _candidate("pibert"),
        "pibert-fourier": _candidate("pibert", branches="fourier"),
        "pibert-frame": _candidate("pibert", branches="wavelet"),
        "pibert-unbiased": _candidate("pibert", attention_bias=0.0),
        "pitt-constant": _candidate("pitt-constant"),
        "pitt-base": _candidate("pitt", updates=0),
        "fno2d-padded": _candidate("fno2d", padding=8),
        "mwt-terms": _candidate("mwt", equation_terms=True),
        "unet-terms": _candidate("unet", "flops-4.3g-5m", equation_terms=True),
        "pibert-mr-no-terms": _candidate("pibert-mr", "base", equation_terms=False),
        "pibert-mr-dmd": _candidate("pibert-mr", "base", dmd_modes=256),
        "unet-dmd": _candidate("unet", "flops-4.3g-5m", dmd_modes=256),
    }


def _small() -> dict[str, Candidate]:
    """All models, small enough for two cores."""
    tokens = {"width": 48, "heads": 4, "depth": 2}
    return {
        "pibert": replace(_candidate("pibert", None, **tokens, modes=12), pretraining=0.2),
        "pibert-mr": _candidate("pibert-mr", "small"),
        "pibert-mr-dmd": _candidate("pibert-mr", "small", dmd_modes=128),
        "fno2d": _candidate("fno2d", width=20),
        "deeponet2d": _candidate("deeponet2d"),
        "pitt": _candidate("pitt"),
        "fourierflow": _flow(width=32, depth=3, align_at=2, draws=2, sampler_steps=4),
        "fourierflow-det": _candidate("fourierflow-det", width=48, depth=3),
        "pinn": _candidate("pinn"),
        "unet": _candidate("unet", "small", width=12),
        "transolver": _candidate("transolver", "small", width=32),
        "mwt": _candidate("mwt", "small", blocks=2, kernel_width=32, levels=3),
        "mwt-published": _candidate("mwt-published", width=2, blocks=2, modes=6, levels=3),
        "pde-transformer": _candidate("pde-transformer", "small"),
        "flowers": _candidate("flowers", width=16, heads=4),
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
        candidates=_published() | _ablations(),
        samples=samples,
        training=replace(_GPU, batch_size=batch_size),
        rollout=RolloutPlan(steps=40, starts=32),
        hardware=Hardware(precision="bf16"),
    )


def _in_box(case: str) -> Comparison:
    """Simulated flows in a periodic box, at half of their resolution."""
    data = DataConfig(
        case=case, preset="standard", size=(64, 64), shares=Shares(train=0.8, valid=0.1)
    )
    return _on_gpu({case: data}, 100_000)


def _in_pairs(data: dict[str, DataConfig], samples: int) -> Comparison:
    plan = _on_gpu(data, samples)
    candidates = {n: e for n, e in plan.candidates.items() if n != "linear-extrapolation"}
    return replace(plan, candidates=candidates, rollout=RolloutPlan(steps=0))


def _published_benchmark(
    data: DataConfig, samples: int, batch_size: int, rollout: RolloutPlan, history: int = 1
) -> Comparison:
    """A benchmark that others defined: rollouts from the first frames of every test flow.

    The learning rate is tuned, and training ends with rollouts, since these are scored.
    """
    trained = {
        "pibert-mr": _candidate("pibert-mr", "base", history=history, vorticity_velocity=True),
        "pibert-mr-large": _candidate(
            "pibert-mr", "large", history=history, vorticity_velocity=True
        ),
        "pibert": _candidate("pibert", history=history),
        "fno2d-modes16": _candidate("fno2d", "modes16", history=history),
        "mwt": _candidate("mwt", history=history),
        "mwt-published": _candidate("mwt-published", "published", history=history),
        "mwt-terms": _candidate("mwt", history=history, equation_terms=True),
        "pde-transformer": _candidate("pde-transformer", history=history),
        "flowers": _candidate("flowers", history=history),
        "unet": _candidate("unet", "flops-4.3g-5m", history=history),
        "unet-terms": _candidate("unet", "flops-4.3g-5m", history=history, equation_terms=True),
    }
    return Comparison(
        data={str(data.case): data},
        candidates=trained | {n: _candidate(n) for n in ("persistence", "training-mean", "dmd")},
        samples=samples,
        training=replace(_GPU, batch_size=batch_size, optimizer="muon", learning_rate=4e-3),
        rollout=rollout,
        rollout_share=0.3,
        hardware=Hardware(precision="bf16"),
    )


_DEMO = Comparison(data={"wakes": _WAKES}, candidates=_small(), samples=6_000)
_TOUR = ("pibert", "pibert-mr-dmd", "fno2d", "deeponet2d", "unet", *REFERENCES)


PRESETS: dict[str, Comparison] = {
    "demo": _DEMO,
    "tour": replace(_DEMO, candidates={n: e for n, e in _DEMO.candidates.items() if n in _TOUR}),
    "quick": Comparison(
        data={
            "wakes": replace(
                _WAKES,
                recipe={"samples": 6, "group": 3, "frames": 24, "warm_up": 4.0},
                shares=Shares(train=0.5, valid=0.17),
            )
        },
        candidates={
            "pibert": replace(
                _candidate("pibert", width=16, heads=2, depth=1, modes=6), pretraining=0.3
            ),
            "pibert-mr": _candidate(
                "pibert-mr", "small", width=8, local_width=16, token_width=16, cycles=1
            ),
            "fno2d": _candidate("fno2d", width=8, depth=2),
            "unet": _candidate("unet", width=4),
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
    # Its frames come in pairs: no rollouts, and no extrapolation from two frames.
    "fsi": _in_pairs(
        {
            "fsi": DataConfig(
                case="tandem",
                preset="fsi-like",
                channels=("u", "v"),
                size=(64, 64),
                shares=Shares(train=0.6, valid=0.2),
                group_by=("Re", "mass_ratio"),  # conditions recur, and the test split has others
            )
        },
        400_000,
    ),
    # Few frames: with large batches there would be few steps before overfitting.
    "jet": _on_gpu({"jet": _JET}, 150_000, batch_size=32),
    "turbulence": _in_box("turbulence"),
    "euler": _in_box("euler"),
    "reaction-diffusion": _in_box("reaction-diffusion"),
    # As many updates and samples as APEBench gives its networks.
    "apebench-kolmogorov": _published_benchmark(
        DataConfig(case="kolmogorov", preset="apebench", split="stated"),
        samples=200_000,
        batch_size=20,
        rollout=RolloutPlan(steps=100, starts=30),
    ),
    "fno-navier-stokes": _published_benchmark(
        DataConfig(case="navier-stokes", preset="fno", split="stated"),
        samples=400_000,
        batch_size=64,
        rollout=RolloutPlan(steps=10, starts=200),
        history=10,
    ),
}
"""Comparisons by name; the first is for two cores."""


_TUNING = {"quick": Tuning(learning_rates=(1e-3, 4e-3), budget=1.0)}
"""Trials of comparisons whose runs are too short for a trial of half their length."""


def find_comparison(name: str, *, tune: bool = False) -> Comparison:
    """A comparison by its name, with the tuning trials that suit it where they are wanted."""
    if name not in PRESETS:
        raise ValueError(f"unknown comparison {name!r}; choose from: {', '.join(PRESETS)}")
    plan = PRESETS[name]
    return replace(plan, tuning=_TUNING.get(name, Tuning())) if tune else plan
