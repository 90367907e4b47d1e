"""Model files: round trips, interrupted saves, damaged and hostile files."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pibert.fields import Boundary, Grid, Normalizer, Sides
from pibert.inference import read_model, save_model
from pibert.inference.model_file import fingerprint
from pibert.models import MODELS, PRESETS, build_model
from pibert.models.pibert import PIBERT
from pibert.models.references.simple import Persistence
from tests.helpers import randomise, refused, small_disk, tiny_model, tiny_spec

NORMALIZER = Normalizer((1.25, -0.1), (0.3, 2.0))
TRAINED = {"forward": True, "reconstruct": True}


def made(seed: int = 0, **overrides: Any) -> PIBERT:
    spec = tiny_spec((12, 20), units=("m/s", "m/s"))
    body = torch.zeros(12, 20, dtype=torch.bool)
    body[4:7, 3:5] = True
    sides = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.SLIP)
    spec = replace(spec, grid=replace(spec.grid, body=body, sides=sides, origin=(0.1, -3.0)))
    model = randomise(tiny_model(spec=spec, **overrides), seed)
    samples = torch.randn(
        4, model.in_channels, 12, 20, generator=torch.Generator().manual_seed(seed)
    )
    model.calibrate(samples, NORMALIZER)
    return model.eval()


def saved(folder: Path, model: PIBERT | None = None, **more: Any) -> Path:
    return save_model(folder, model or made(), NORMALIZER, **({"trained": TRAINED} | more))


def edit(folder: Path, *path: str | int, value: Any) -> None:
    """Change one value of model.json."""
    file = folder / "model.json"
    card = place = json.loads(file.read_text())
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(card))


def rewrite(folder: Path, *, text: str | None = None, **tensors: torch.Tensor | None) -> Path:
    """The weights with some tensors changed (None: left out), the card in the header alone."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    with safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["pibert"])
    for name, tensor in tensors.items():
        name = name.replace("__", ".")
        weights.pop(name) if tensor is None else weights.update({name: tensor})
    card["weights"]["sha256"] = fingerprint(weights)
    other = folder / "other.safetensors"
    save_file(weights, other, {"pibert": text or json.dumps(card)})
    return other


def test_a_saved_model_is_read_with_the_same_function_and_card(tmp_path: Path) -> None:
    model = made(family_weights=(1.0, 0.5), history=2)
    more = {"provenance": {"seed": 3, "data": "wakes"}, "metrics": {"valid": {"rmse": 0.25}}}
    assert saved(tmp_path / "run", model, **more) == tmp_path / "run"
    for path in (tmp_path / "run", str(tmp_path / "run"), tmp_path / "run" / "model.safetensors"):
        found = read_model(path)
        assert isinstance(found.model, PIBERT) and not found.model.training
        assert found.model.config == model.config
        assert found.model.spec == model.spec and found.normalizer == NORMALIZER
        x, parameters = torch.randn(2, 4, 12, 20), torch.randn(2, 1)
        assert torch.equal(found.model(x, parameters), model(x, parameters))
        card = found.card
        assert (card["format"], card["version"]) == ("pibert-model", 1)
        assert card["units"] == {"u": "m/s", "v": "m/s"}
        assert card["trained"] == {"forward": True, "reconstruct": True, "consistency": False}
        assert card["provenance"] == more["provenance"] and card["metrics"] == more["metrics"]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("place", ["first file", "second rename"])
def test_a_killed_save_leaves_the_old_or_the_new_model(tmp_path: Path, place: str) -> None:
    """The process ends at once, as by kill -9, at two places of a second save."""
    saved(tmp_path, made(0))
    x = torch.randn(1, 2, 12, 20)
    code = f"""
import os, sys, torch
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.inference.test_model_file import made, saved
fsync, rename, count = os.fsync, os.replace, 0
def maybe_end(kind, call, *a):
    global count
    count += kind == "rename"
    if {place!r} == "first file" and kind == "fsync": os._exit(9)
    if {place!r} == "second rename" and count == 2: os._exit(9)
    return call(*a)
os.fsync = lambda *a: maybe_end("fsync", fsync, *a)
os.replace = lambda *a: maybe_end("rename", rename, *a)
from pathlib import Path
saved(Path({str(tmp_path)!r}), made(1))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    expected = made(1 if place == "second rename" else 0)
    found = read_model(tmp_path)
    assert torch.equal(found.model.state_dict()["positions"], expected.positions)
    assert list(tmp_path.glob(".*.partial"))
    saved(tmp_path, made(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    assert torch.equal(read_model(tmp_path).model(x), made(2)(x))


def test_truncating_a_file_after_reading_does_no_harm(tmp_path: Path) -> None:
    """Weights that stayed mapped from the file would end the process with SIGBUS."""
    model = read_model(saved(tmp_path)).model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    os.truncate(tmp_path / "model.safetensors", 10)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_full_disk_keeps_the_old_model(tmp_path: Path) -> None:
    saved(tmp_path, made(0))
    with small_disk(1000), pytest.raises(OSError, match="File too large"):
        saved(tmp_path, made(1))
    assert torch.equal(read_model(tmp_path).model.state_dict()["positions"], made(0).positions)
    assert not list(tmp_path.glob(".*"))


def test_the_card_is_in_the_file_and_in_the_header_and_one_of_them_suffices(tmp_path: Path) -> None:
    saved(tmp_path)
    weights, card = tmp_path / "model.safetensors", tmp_path / "model.json"
    with safe_open(weights, "pt") as file:
        assert file.metadata()["pibert"] == card.read_text()
    # Metrics may be edited, and the file counts.
    edit(tmp_path, "metrics", value={"test": 1.5})
    assert read_model(tmp_path).card["metrics"] == {"test": 1.5}
    assert read_model(weights).card["metrics"] == {}
    text = card.read_text()
    card.unlink()
    assert read_model(tmp_path).card["weights"]["file"] == "model.safetensors"
    card.write_text(text)
    save_file(load_file(weights), weights)  # without the header
    assert torch.equal(read_model(tmp_path).model.state_dict()["positions"], made().positions)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("spec", "grid", "dx"), 1.0, ("spec.grid.dx", 0.3, 1.0, "undo the edit")),
        (("trained", "consistency"), True, ("trained.consistency", False, True)),
        (("version",), 2, ("version 1 to 1", 2, "update pibert")),
        (("format",), "other", ("'pibert-model'", "'other'")),
    ],
)
def test_edits_of_entries_that_the_weights_depend_on_are_refused(
    tmp_path: Path, path: tuple[str, ...], value: Any, named: tuple[object, ...]
) -> None:
    saved(tmp_path)
    edit(tmp_path, *path, value=value)
    with refused(*named):
        read_model(tmp_path)


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (folder / "model.safetensors").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), ("whole", "5,000 bytes")),
        (flip_a_bit, ("fingerprint", "damaged or was changed")),
        (lambda folder: (folder / "model.json").write_text("{"), ("JSON", "remove model.json")),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], named: tuple[str, ...]
) -> None:
    damage(saved(tmp_path))
    with refused(*named):
        read_model(tmp_path)


def test_a_path_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"\x80\x02")
    save_file({"a": torch.ones(2)}, tmp_path / "foreign.safetensors")
    for name, words in {
        "nowhere": "found nothing",
        ".": "expected a folder with model.safetensors",
        "model.pt": "expected a folder with model.safetensors",
        "foreign.safetensors": "weights without a card",
    }.items():
        with refused(words, error=(FileNotFoundError, ValueError)):
            read_model(tmp_path / name)


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (None, "no norm.bias"),
        (torch.ones(7), "norm.bias torch.float32 [7] for torch.float32 [32]"),
        (torch.full((32,), torch.nan), "norm.bias"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, tensor: torch.Tensor | None, named: str
) -> None:
    saved(tmp_path)
    with refused(named):
        read_model(rewrite(tmp_path, norm__bias=tensor))
    extra: dict[str, Any] = {name: torch.ones(1) for name in "abcd"}
    with refused("which the model has not", "1 more"):
        read_model(rewrite(tmp_path, **extra))


@pytest.mark.parametrize("name", ["mwt", "unet", "pde-transformer"])
def test_a_periodic_model_with_two_coordinates_is_refused(tmp_path: Path, name: str) -> None:
    """As earlier versions built it: now there are a cosine and a sine for each axis."""
    options = {"coordinates": True} if name == "unet" else {}
    model = tiny_model(name, tiny_spec(grid=Grid.periodic((16, 16))), **options)
    first = {"mwt": "lift", "unet": "stem", "pde-transformer": "patches"}[name]
    weight = getattr(model, first).weight
    area = 16 if name == "pde-transformer" else 1
    save_model(tmp_path, model, NORMALIZER, trained={"forward": True})
    older = weight.detach()[:, : weight.shape[1] - 2 * area].contiguous()
    with refused(f"{first}.weight torch.float32 {list(older.shape)}", "train it again"):
        read_model(rewrite(tmp_path, **{f"{first}__weight": older}))


def test_a_model_that_cannot_be_read_again_is_not_saved(tmp_path: Path) -> None:
    broken = made()
    with torch.no_grad():
        broken.norm.bias[3] = torch.inf
    cases: list[tuple[str, dict[str, Any]]] = [
        ("norm.bias", {"model": broken}),
        ("positions torch.float64", {"model": made().double()}),
        ("metrics as plain JSON", {"metrics": {"rmse": float("nan")}}),
        ("'forward'", {"trained": {"foward": True}}),
        ("Sequential; give the module itself", {"model": torch.nn.Sequential(made())}),
        ("2 channels", {"normalizer": Normalizer.identity(3)}),
    ]
    for named, changes in cases:
        given: dict[str, Any] = {"model": made(), "normalizer": NORMALIZER, "trained": TRAINED}
        with refused(named):
            save_model(tmp_path / "run", **(given | changes))
    assert not (tmp_path / "run").exists()


def test_the_error_of_an_unknown_model_asks_to_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(MODELS, "mine", type("Mine", (Persistence,), {}))
        patch.setitem(PRESETS, "mine", PRESETS["persistence"])
        model = build_model("mine", spec=tiny_spec())
        versions = {"versions": {"pibert": "0.0.1"}}
        save_model(tmp_path, model, Normalizer.identity(2), trained={}, provenance=versions)
    with refused("'mine' is not known", "--import", "saved by pibert 0.0.1"):
        read_model(tmp_path)


def with_card(folder: Path, *path: str | int, value: Any) -> Path:
    """A changed card in the header, beside weights whose fingerprint it states."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        card = place = json.loads(file.metadata()["pibert"])
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return rewrite(folder, text=json.dumps(card))


HOSTILE: list[tuple[tuple[str | int, ...], Any]] = [
    (("model", "config", "width"), 6016),
    (("model", "config", "modes"), 60_000),
    (("spec", "grid", "shape"), [10**6, 10**6]),
    (("spec", "channels"), [str(number) for number in range(10**5)]),
    (("spec", "parameters", 0, "mean"), 10**300),
    (("trained",), 3),
]


@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=lambda part: str(part)[:40])
def test_a_hostile_card_is_refused_before_memory_is_allocated(
    tmp_path: Path, path: tuple[str | int, ...], value: Any
) -> None:
    """A width of 6,000 would take 12 GB. Here the process may not have 300 MB more."""
    file = with_card(saved(tmp_path), *path, value=value)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), hard))
    try:
        with pytest.raises(ValueError, match="other.safetensors: ") as raised:
            read_model(file)
        assert "alloc" not in str(raised.value)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "neuraloperator"])
def test_every_model_can_be_built_without_memory(name: str) -> None:
    real = tiny_model(name)
    with torch.device("meta"):
        skeleton = MODELS[name](real.config, real.spec)
    for key, tensor in skeleton.state_dict().items():
        assert tensor.is_meta and tensor.shape == real.state_dict()[key].shape


def test_a_user_model_may_compute_in_its_constructor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(Persistence):
        def __init__(self, config: Any, spec: Any) -> None:
            super().__init__(config, spec)
            self.scale = torch.nn.Parameter(torch.ones(3))
            self.norm = float(self.scale.sum().item())

    monkeypatch.setitem(MODELS, "persistence", Own)
    model = Own(PRESETS["persistence"]["base"], tiny_spec())
    save_model(tmp_path, model, Normalizer.identity(2), trained={"forward": True})
    assert read_model(tmp_path).model.norm == 3.0
