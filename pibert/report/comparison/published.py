"""Numbers that the PIBERT paper prints, and how they were obtained; none was measured here.

Errors are in standardised units, over the test split. From the tables of aggregate accuracy, of
components, of scales and diagnostics, of inference times and of the optimisation cost, and from the
text on slices and bands; only the cylinder's top-two rates in bands are from its published logs.
``protocol`` says what the paper states, or what these logs show where that is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Numbers = Mapping[str, Mapping[str, int | float]]
"""By the name of our model, then by metric."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the paper prints of one benchmark."""

    errors: Numbers
    """nmse, lmae, lpcc, r2, rel_l2 of all channels."""
    decimals: int
    """With which errors are printed."""
    components: Mapping[str, Numbers]
    """nmse, lpcc, r2 of PIBERT and another model, by component, and PIBERT's gain in nmse."""
    costs: Numbers = field(default_factory=dict)
    """ms: inference per sample; parameters, checkpoint (MB, which fit 2^20 bytes), epoch (s),
    training (min)."""
    rates: Mapping[str, tuple[float, float]]
    """PIBERT's shares of the test samples, first and among the first two of six models: along the
    columns 11, 32 and 52 of the speed, and in thirds of its spectrum."""
    best: Mapping[str, tuple[float, str, float]] = field(default_factory=dict)
    """Diagnostics by the paper's name: PIBERT's, and the best model and its value."""
    best_decimals: int = 8
    protocol: Mapping[str, str]


_SHARED = {
    "fields": "u and v on 64 × 64 points",
    "models": "six, without persistence or other predictors that need no training",
    "budget": "each model's own; the paper claims no equal budgets",
    "skip connection": "that of PIBERT only, as far as is published",
    "inputs": "PIBERT: fields and parameters, zero where absent; others not stated",
    "seeds": "one run of each model",
    "intervals": "none",
    "units of errors": "standardised; |u| is the norm of two standardised channels",
    "slices": "columns 11, 32 and 52 of 64; not tied to the body",
}

PUBLISHED: dict[str, Published] = {
    "cylinder-real": Published(
        errors={
            "pibert": {"nmse": 0.05875, "lmae": 0.11448, "lpcc": 0.97019, "r2": 0.94123},
            "fourierflow": {"nmse": 0.05931, "lmae": 0.11797, "lpcc": 0.96989, "r2": 0.94066},
            "fno2d": {"nmse": 0.06003, "lmae": 0.13216, "lpcc": 0.96959, "r2": 0.93995},
            "pitt": {"nmse": 0.11729, "lmae": 0.19095, "lpcc": 0.94118, "r2": 0.88267},
            "deeponet2d": {"nmse": 0.19846, "lmae": 0.26190, "lpcc": 0.89658, "r2": 0.80146},
            "pinn": {"nmse": 0.39938, "lmae": 0.29292, "lpcc": 0.77492, "r2": 0.60046},
        },
        decimals=5,
        components={
            "u": {
                "pibert": {"nmse": 0.02993, "lpcc": 0.98490},
                "pinn": {"nmse": 0.08954, "lpcc": 0.95413},
            },
            "v": {
                "pibert": {"nmse": 0.08984, "lpcc": 0.95407},
                "pinn": {"nmse": 0.73364, "lpcc": 0.51642},
            },
            "|u|": {
                "pibert": {"nmse": 0.03051, "lpcc": 0.94085},
                "pinn": {"nmse": 0.18036, "lpcc": 0.63154},
            },
            "all": {
                "pibert": {"nmse": 0.05875, "lpcc": 0.97019},
                "pinn": {"nmse": 0.39938, "lpcc": 0.77492},
            },
        },
        costs={
            "pibert": {"ms": 5.85},
            "fourierflow": {"ms": 3.77},
            "fno2d": {"ms": 3.31},
            "pitt": {"ms": 1.98},
            "deeponet2d": {"ms": 0.62},
            "pinn": {"ms": 0.47},
        },
        rates={
            "column_11": (0.869, 0.984),
            "column_32": (0.407, 0.683),
            "column_52": (0.497, 0.763),
            "low": (0.408, 0.705),
            "mid": (0.347, 0.635),
            "high": (0.238, 0.644),
        },
        best={"Drag proxy (data: 0.05773)": (0.06253, "fno2d", 0.06000)},
        best_decimals=5,
        protocol={
            **_SHARED,
            "split": "seed 42: 73, 9 and 10 trajectories, 14,527, 1,791 and 1,990 pairs; the "
            "permutation is not published",
            "size of PIBERT": "1.560 M; 1,560,232 in the published log",
            "selection": "on the validation split; a last stage of PIBERT also watched the test "
            "error (published log)",
        },
    ),
    "fsi-real": Published(
        errors={
            "pibert": {"nmse": 2.70e-4, "lmae": 0.008640, "lpcc": 0.999864, "r2": 0.999729,
                       "rel_l2": 0.016418},
            "fourierflow": {"nmse": 4.02e-4, "lmae": 0.010626, "lpcc": 0.999797, "r2": 0.999595,
                            "rel_l2": 0.020058},
            "pinn": {"nmse": 5.80e-4, "lmae": 0.011629, "lpcc": 0.999708, "r2": 0.999416,
                     "rel_l2": 0.024076},
            "fno2d": {"nmse": 0.002248, "lmae": 0.027409, "lpcc": 0.998873, "r2": 0.997736,
                      "rel_l2": 0.047416},
            "pitt": {"nmse": 0.046901, "lmae": 0.101337, "lpcc": 0.976101, "r2": 0.952772,
                     "rel_l2": 0.216566},
            "deeponet2d": {"nmse": 0.105176, "lmae": 0.172149, "lpcc": 0.945567, "r2": 0.894091,
                           "rel_l2": 0.324309},
        },
        decimals=6,
        components={
            "u": {
                "pibert": {"nmse": 1.43e-4, "lpcc": 0.999926, "r2": 0.999851, "gain": 0.272},
                "fourierflow": {"nmse": 1.97e-4, "lpcc": 0.999898, "r2": 0.999796},
            },
            "v": {
                "pibert": {"nmse": 3.81e-4, "lpcc": 0.999809, "r2": 0.999619, "gain": 0.347},
                "fourierflow": {"nmse": 5.84e-4, "lpcc": 0.999708, "r2": 0.999416},
            },
            "|u|": {
                "pibert": {"nmse": 1.49e-4, "lpcc": 0.999829, "r2": 0.999657, "gain": 0.342},
                "fourierflow": {"nmse": 2.26e-4, "lpcc": 0.999739, "r2": 0.999479},
            },
            "all": {
                "pibert": {"nmse": 2.70e-4, "lpcc": 0.999864, "r2": 0.999729, "gain": 0.330},
                "fourierflow": {"nmse": 4.02e-4, "lpcc": 0.999797, "r2": 0.999595},
            },
        },
        costs={
            "pibert": {"parameters": 8_714_248, "checkpoint": 99.51, "epoch": 49.2,
                       "training": 13.9},
            "fourierflow": {"parameters": 2_777_282, "checkpoint": 31.85, "epoch": 9.6,
                            "training": 27.7},
            "fno2d": {"parameters": 1_054_082, "checkpoint": 12.12, "epoch": 7.7,
                      "training": 22.8},
            "pitt": {"parameters": 216_898, "checkpoint": 2.54, "epoch": 8.1,
                     "training": 23.1},
            "deeponet2d": {"parameters": 150_674, "checkpoint": 1.77, "epoch": 3.1,
                           "training": 8.4},
            "pinn": {"parameters": 21_250, "checkpoint": 0.29, "epoch": 2.9,
                     "training": 6.7},
        },
        rates={
            "column_11": (0.879, 0.978),
            "column_32": (0.763, 0.949),
            "column_52": (0.914, 0.986),
            "low": (0.485, 0.852),
            "mid": (0.554, 0.860),
            "high": (0.493, 0.789),
        },
        best={
            "Scale-1 NMSE": (2.6954e-4, "pibert", 2.6954e-4),
            "Scale-2 NMSE": (1.4469e-4, "pibert", 1.4469e-4),
            "Scale-4 NMSE": (6.776e-5, "pibert", 6.776e-5),
            "Scale-8 NMSE": (2.994e-5, "pibert", 2.994e-5),
            "Vorticity MSE": (1.8599e-4, "pibert", 1.8599e-4),
            "Boundary MSE": (1.02852666, "pibert", 1.02852666),
            "Divergence MSE": (0.04030116, "deeponet2d", 0.01261038),
            "Spectral L2": (1.7580e-4, "fourierflow", 1.98e-6),
            "Spectral slope error": (0.00100403, "pinn", 1.4111e-4),
            "u-LH1 NMSE": (0.01003125, "pibert", 0.01003125),
            "u-HL1 NMSE": (0.00265505, "pibert", 0.00265505),
            "u-HH1 NMSE": (0.02804489, "pibert", 0.02804489),
            "v-LH1 NMSE": (0.00297122, "pibert", 0.00297122),
            "v-HL1 NMSE": (0.00435680, "pibert", 0.00435680),
            "v-HH1 NMSE": (0.01495957, "pibert", 0.01495957),
        },
        protocol={
            **_SHARED,
            "split": "the publishers'; 5,441, 2,730 and 2,731 pairs (published log)",
            "size of PIBERT": "8,714,248 in the table of costs, 1.560 M in the text",
            "selection": "on the validation split; PIBERT ran 20 epochs from the weights of an "
            "earlier run, whose time is not in the table of costs (published log)",
        },
    ),
}  # fmt: skip
"""By the name of the plan in ``configs/comparisons/``."""
OURS = {"fourierflow": ("fourierflow-det", "fourierflow")}
"""Our models in the place of one of the paper's, the likest first. Its FourierFlow is a regressor
that predicts one step."""
