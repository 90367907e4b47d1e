"""Damaged and hostile files of models and runs: what to change in them, and how they are read."""

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from pibert.config import as_plain, parse
from pibert.data.dataset import Window
from pibert.experiments.experiment import DataConfig, Experiment, Pretraining
from pibert.experiments.run_folder import read_config, unfinished
from pibert.files import read_safetensors
from pibert.inference import CalibrationSettings, Predictor, calibrate, load, save_calibration
from pibert.inference.calibration_file import SHEET, TENSORS, read_calibration
from pibert.report.curves import read_epochs
from pibert.training.checkpoints import Checkpoints
from pibert.training.journal import LogSums
from pibert.training.optimizers import build_optimizers
from pibert.training.processes import Processes, launch
from pibert.training.state import FILE, read_tensors, write_tensors
from tests.fuzz.mutations import mutate
from tests.inference.flows import flows, samples_of, saved
from tests.training.setups import CPU, QUICK, make_model, train

Rng = random.Random

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 65535, 10**6, 2**31, 2**63, 10**18, 10**300, -(2**63)),
    *(0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), -float("inf")),
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(None, True, False, "", "a", "\0", "../../etc/passwd", "x" * 5000, "é\ud800"),
    *([], {}, [[]], [None], {"": 0}, [1] * 1000, ["a", "a"], [10**9, 10**9]),
)


BOTTOMLESS = "bottomless"
"""Stands for lists that are nested more deeply than Python can write them."""


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def change_values(rng: Rng, plain: Any) -> Any:
    """Replace, remove or add values anywhere in lists and tables."""
    plain = copy.deepcopy(plain)
    for _ in range(rng.choice((1, 1, 2, 4))):
        keys = list(_keys(plain))
        if not keys:
            return rng.choice(VALUES)
        inside, key = rng.choice(keys)
        kind = rng.randrange(8)
        if kind == 0:
            del inside[key]
        elif kind == 1 and isinstance(inside, dict):
            inside[rng.choice(("", "extra", "0", str(key) + "s"))] = rng.choice(VALUES)
        elif kind == 2:
            inside[key] = rng.choice((deep(3), deep(70), BOTTOMLESS))
        elif kind == 3 and isinstance(inside[key], int | float):
            inside[key] = inside[key] * rng.choice((-1, 0, 2, 1000, 1e10))
        elif isinstance(inside[key], int | float) and rng.random() < 0.5:
            inside[key] = rng.choice(NUMBERS)
        else:
            inside[key] = copy.deepcopy(rng.choice(VALUES))
    return plain


def _keys(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or table with each key of it."""
    if isinstance(plain, dict | list):
        for key in plain if isinstance(plain, dict) else range(len(plain)):
            yield plain, key
            yield from _keys(plain[key])


def as_json(plain: Any) -> str:
    text = json.dumps(plain, ensure_ascii=True)
    return text.replace(json.dumps(BOTTOMLESS), "[" * 100_000 + "]" * 100_000)


class Good:
    """A folder with a model, its calibration and the files of a run, to make bad ones of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _write(folder)
        self.checkpoints = _checkpoints(folder)
        self.weights = (folder / "model.safetensors").read_bytes()
        self.tensors, metadata = read_safetensors(folder / "model.safetensors")
        self.card: dict[str, Any] = json.loads(metadata["pibert"])
        self.sheet: dict[str, Any] = json.loads((folder / SHEET).read_text())
        self.calibration = (folder / TENSORS).read_bytes()
        self.state = (folder / FILE).read_bytes()
        self.header, self.state_tensors = read_tensors(folder / FILE)
        self.record: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.log = (folder / "log.jsonl").read_bytes()
        self.files = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def restore(self) -> None:
        for path, content in self.files.items():
            if not path.is_file() or path.read_bytes() != content:
                path.unlink(missing_ok=True)
                path.write_bytes(content)


def _write(folder: Path) -> None:
    predictor = saved(folder)
    settings = CalibrationSettings(leads=2, starts=2)
    fit = samples_of(flows(6, seed=0), Window(history=2))
    held_out = samples_of(flows(6, seed=1), Window(history=2, horizon=settings.leads))
    found = calibrate(predictor, fit, held_out, settings)
    save_calibration(folder, found, predictor.spec.channels)
    train(folder, epochs=1)
    experiment = Experiment(data=DataConfig(case="turbulence"), pretraining=Pretraining())
    content = {"experiment": as_plain(experiment), "stage": "train", "directory": "."}
    schedule = as_plain(experiment.training)
    (folder / "config.json").write_text(json.dumps({**content, "schedule": schedule}))


def _checkpoints(folder: Path) -> Checkpoints:
    model = make_model(0.0)
    rates: dict[str, Any] = {"rate": 1e-3, "weight_decay": 0.0, "betas": QUICK.betas}
    known: dict[str, Any] = {"identity": "same", "seed": 5, "minutes": 1.0, "mean": None}
    return Checkpoints(
        folder=folder,
        model=model,
        optimizers=build_optimizers(model, QUICK.optimizer, **rates),
        processes=Processes(launch(CPU)),
        say=lambda text: None,
        **known,
    )


# What is changed, and how it is read; each writes into the folder of the good files.


def weights_changed(rng: Rng, good: Good) -> None:
    (good.folder / "model.safetensors").write_bytes(mutate(good.weights, rng))
    load(good.folder)


def header_changed(rng: Rng, good: Good) -> None:
    """Shapes, types and offsets in the header of the weights."""
    size = int.from_bytes(good.weights[:8], "little")
    header = json.loads(good.weights[8 : 8 + size])
    changed = as_json(change_values(rng, header)).encode()
    data = struct.pack("<Q", len(changed)) + changed + good.weights[8 + size :]
    (good.folder / "model.safetensors").write_bytes(data)
    load(good.folder / "model.safetensors")


def card_changed(rng: Rng, good: Good) -> None:
    """The card in the header, whose fingerprint is still that of the weights."""
    card = change_values(rng, good.card)
    if isinstance(card, dict):
        card.setdefault("weights", {})
        card["weights"] = good.card["weights"] if rng.random() < 0.9 else card["weights"]
    data = save(good.tensors, {"pibert": as_json(card)})
    (good.folder / "model.safetensors").write_bytes(data)
    (good.folder / "model.json").unlink()
    _use(load(good.folder))


def _use(predictor: Predictor) -> None:
    """A model that is read is named and used."""
    repr(predictor)
    spec = predictor.spec
    predictor.step(torch.zeros(predictor.history, len(spec.channels), *spec.grid.shape))


def card_file_changed(rng: Rng, good: Good) -> None:
    path = good.folder / "model.json"
    path.write_bytes(mutate(path.read_bytes(), rng))
    load(good.folder)


def calibration_changed(rng: Rng, good: Good) -> None:
    if rng.random() < 0.7:
        sheet = change_values(rng, good.sheet)
        if isinstance(sheet, dict):
            sheet |= {key: good.sheet[key] for key in ("tensors_sha256", "weights_sha256")}
        (good.folder / SHEET).write_text(as_json(sheet))
    else:
        (good.folder / TENSORS).write_bytes(mutate(good.calibration, rng))
    read_calibration(good.folder, good.card["weights"]["sha256"])


def state_changed(rng: Rng, good: Good) -> None:
    path = good.folder / FILE
    if rng.random() < 0.5:
        path.write_bytes(mutate(good.state, rng))
    else:  # with a checksum that holds
        tensors = dict(good.state_tensors)
        name = rng.choice(list(tensors))
        shape = rng.choice(((0,), (1,), (3, 2)))
        kinds = (torch.float32, torch.int64, torch.uint8)
        tensors[name] = torch.ones(shape, dtype=rng.choice(kinds))
        header = change_values(rng, good.header) if rng.random() < 0.5 else good.header
        header = header if isinstance(header, dict) else {"header": header}
        header |= {key: good.header[key] for key in ("identity", "seed", "format", "version")}
        write_tensors(path, tensors if rng.random() < 0.5 else good.state_tensors, header)
    good.checkpoints.load(LogSums(torch.device("cpu")))


def run_changed(rng: Rng, good: Good) -> None:
    """The record and the log of a run."""
    if rng.random() < 0.7:
        text = as_json(change_values(rng, good.record))
        (good.folder / "config.json").write_text(text)
    else:
        (good.folder / "log.jsonl").write_bytes(mutate(good.log, rng))
        read_epochs(good.folder / "log.jsonl")
    recorded = read_config(good.folder / "config.json")
    parse(Experiment, recorded["experiment"])
    unfinished(good.folder)


def fault(change: Callable[[Rng, Good], None], rng: Rng, good: Good) -> Exception | None:
    """Return an error that a changed file must not raise, if any; restore the good files."""
    try:
        with torch.random.fork_rng(devices=[]):
            change(rng, good)
    except (ValueError, OSError, FloatingPointError):
        return None
    except Exception as error:
        return error
    finally:
        good.restore()
    return None


CHANGES: tuple[Callable[[Rng, Good], None], ...] = (
    *(weights_changed, header_changed, card_changed, card_file_changed, calibration_changed),
    *(state_changed, run_changed),
)
