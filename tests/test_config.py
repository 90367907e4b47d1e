"""Settings are parsed strictly; errors name the setting."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from pibert.config import (
    Bounds,
    Count,
    Positive,
    as_plain,
    assignment,
    check,
    fingerprint,
    identity,
    parse,
    read,
    schema,
    with_overrides,
)
from pibert.models.pibert import PIBERTConfig
from pibert.training.settings import Hardware
from tests.helpers import refused


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How weights move."""

    name: Literal["adamw", "muon"] = "adamw"
    rate: float = 1e-3
    """Learning rate
    at its highest."""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be positive, found {self.rate}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    epochs: int = 120
    """Passes over the data."""
    compile: bool = False
    optimiser: Optimiser = Optimiser()


@dataclass(frozen=True, kw_only=True)
class Study:
    title: str
    channels: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    start: str | None = None
    training: Fit = Fit()
    pretraining: Fit | None = Fit(epochs=50, optimiser=Optimiser(rate=5e-4))
    extra: Fit | None = None
    """A further stage."""
    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    gap: int | Literal["auto"] = "auto"
    derived: int = field(default=0, init=False)


FULL = Study(
    title="wakes",
    channels=("u", "v"),
    size=(48, 96),
    training=Fit(epochs=3, optimiser=Optimiser(clip=None, name="muon")),
    pretraining=None,
    extra=Fit(compile=True),
    options={"width": 32, "nested": {"skip": False, "list": [1, 2.5, "x"]}, "nothing": None},
    weights={"mpp": 0.5},
    gap=4,
)


@pytest.mark.parametrize("study", [FULL, Study(title="")])
def test_plain_values_and_json_restore_an_equal_config(study: Study) -> None:
    plain = as_plain(study)
    assert parse(Study, plain) == study
    assert parse(Study, json.loads(json.dumps(plain))) == study
    assert "derived" not in plain


def test_a_section_is_filled_from_the_default_of_its_field() -> None:
    study = parse(Study, {"title": "a", "pretraining": {"optimiser": {"clip": 2.0}}})
    assert study.pretraining == Fit(epochs=50, optimiser=Optimiser(rate=5e-4, clip=2.0))
    # One that is not there by default is filled from its own defaults.
    assert parse(Study, {"title": "a", "extra": {}}).extra == Fit()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training": {"epoch": 3}}, ("'training.epoch'", "did you mean 'training.epochs'")),
        ({"epochs": 3}, ("'epochs'", "'training.epochs'", "'pretraining.epochs'")),
        ({"title": 3}, ("title", "a text", 3)),
        ({"training": {"epochs": 2.0}}, ("training.epochs", "a whole number", 2.0)),
        ({"training": {"optimiser": {"rate": "x"}}}, ("rate", "a number", "'x'")),
        ({"training": {"optimiser": {"rate": -1}}}, ("training.optimiser", "positive")),
        ({"training": {"optimiser": {"name": "sgd"}}}, ('"adamw", "muon"', "'sgd'")),
        ({"training": {"optimiser": {"betas": [0.9, "x"]}}}, ("betas[1]", "a number")),
        ({"training": None}, ("training", "a section", "none")),
        ({"channels": "u"}, ("channels", "a list", "'u'")),
        ({"weights": {"mpp": "x"}}, ("weights.mpp", "a number", "'x'")),
    ],
)
def test_errors_name_the_path_of_the_setting(
    change: dict[str, Any], named: tuple[object, ...]
) -> None:
    with refused(*named):
        parse(Study, {"title": "a", **change})
    with refused("study.title is missing", "a text"):
        parse(Study, {}, "study")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 1e-3), ("1_000", 1000), ("inf", math.inf), ("true", True),
        ("null", None), ("adamw", "adamw"), ('"3"', "3"), ("'3'", "3"), ("a=b", "a=b"), ("", ""),
        ("2024-01-01", "2024-01-01"), ("[1, 2.5]", [1, 2.5]), ("[u,v]", ["u", "v"]), ("[]", []),
        ('{"a": 1}', {"a": 1}), ("{a = 1}", {"a": 1}), ("data/wake 1.h5", "data/wake 1.h5"),
    ],
)  # fmt: skip
def test_a_value_is_read_as_json_toml_or_a_word(text: str, value: object) -> None:
    key, found = assignment(f"a.b={text}")
    assert key == "a.b"
    assert found == value and type(found) is type(value)


def test_overrides_reach_inside_and_the_last_one_wins() -> None:
    changes = ["training.optimiser.clip=none", "training.epochs=1", "training.epochs=2"]
    changes += ["extra.epochs=7", "channels=[u,v]", "options.a.b=3", "size=null", "gap=auto"]
    study = with_overrides(replace(FULL, channels=()), changes)
    assert study.training == Fit(epochs=2, optimiser=Optimiser(clip=None, name="muon"))
    assert study.extra == Fit(epochs=7, compile=True)
    assert study.channels == ("u", "v") and study.size is None and study.gap == "auto"
    assert study.options == {**FULL.options, "a": {"b": 3}}


def test_an_override_makes_a_section_that_was_none() -> None:
    expected = Fit(epochs=9, optimiser=Optimiser(rate=5e-4))  # the rest as the field has it
    assert with_overrides(FULL, ["pretraining.epochs=9"]).pretraining == expected
    assert with_overrides(FULL, ["extra=none"]).extra is None
    assert with_overrides(FULL, ['extra={"epochs": 8}']).extra == Fit(epochs=8)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("title.x=3", ("title", "a section", "'wakes'")),
        ("training.epochs", ("KEY=VALUE", "'training.epochs'")),
    ],
)
def test_errors_name_the_wrong_override(change: str, named: tuple[object, ...]) -> None:
    before = as_plain(FULL)
    with refused(*named):
        with_overrides(FULL, [change])
    with_overrides(FULL, ["options.width=64", "options.nested.skip=true"])
    assert as_plain(FULL) == before


def test_read_applies_overrides_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('title = "a"\npretraining = "none"\n[training.optimiser]\nclip = "none"\n')
    study = read(path, Study, ["training.epochs=5"])
    assert study == Study(
        title="a", pretraining=None, training=Fit(epochs=5, optimiser=Optimiser(clip=None))
    )


@pytest.mark.parametrize(
    ("content", "overrides", "named"),
    [
        (b"title = \n", (), ("study.toml", "TOML", "line 1")),
        (b'title = "a"\ntraining = 3', ("training.epochs=3",), ("training", "a section", 3)),
    ],
)
def test_errors_name_the_wrong_file(
    tmp_path: Path, content: bytes, overrides: tuple[str, ...], named: tuple[object, ...]
) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with refused(*named):
        read(path, Study, overrides)


def test_identity_depends_on_values_alone_and_not_on_the_process() -> None:
    assert identity(parse(Study, as_plain(FULL))) == identity(FULL)
    assert identity(replace(FULL, gap=5)) != identity(FULL)
    # 1 and 1.0 are equal, and so are configs that hold them.
    whole = parse(Study, {"title": "a", "training": {"optimiser": {"clip": 1}}})
    assert identity(whole) == identity(Study(title="a"))
    code = (
        "from pibert.config import identity; from pibert.models.pibert import PIBERTConfig; "
        "print(identity(PIBERTConfig(dropout=0.1)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env={"PYTHONHASHSEED": "7"},
    )
    assert found.stdout.strip() == identity(PIBERTConfig(dropout=0.1))


def test_a_setting_is_read_under_the_name_of_earlier_versions() -> None:
    hardware = parse(Hardware, {"record": False})
    assert hardware == Hardware(cuda_graphs=False)
    assert as_plain(hardware) == as_plain(Hardware()) | {"cuda_graphs": False}
    # Runs of earlier versions resume: the hash is that of the former name.
    stored = {"record" if k == "cuda_graphs" else k: v for k, v in as_plain(hardware).items()}
    assert identity(hardware) == fingerprint(stored)
    with refused("record"):
        parse(Hardware, {"record": False, "cuda_graphs": True})


def test_schema_lists_kind_default_and_meaning() -> None:
    rows = {row.name: row for row in schema(Study)}
    assert list(rows)[:4] == ["title", "channels", "size", "start"]
    assert "training" not in rows and "derived" not in rows
    expected = {
        "title": ("a text", "", ""),
        "training.epochs": ("a whole number", "120", "Passes over the data."),
        # The default of the field, not of the class of its section.
        "pretraining.epochs": ("a whole number", "50", "Passes over the data."),
        "training.optimiser.rate": ("a number", "0.001", "Learning rate at its highest."),
        "extra": ("a section or none", "none", "A further stage."),
    }
    for name, (kind, default, meaning) in expected.items():
        row = rows[name]
        assert (row.kind, row.default, row.meaning) == (kind, default, meaning)


@dataclass(frozen=True, kw_only=True)
class Limited:
    share: Annotated[float, Bounds(above=0, most=1)] = 0.5
    counts: tuple[Count, ...] = ()
    clip: Positive | None = None

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"share": 0.0}, ("share", "above 0 and at most 1", 0.0)),
        ({"share": math.nan}, ("share", "nan")),
        ({"counts": (1, 0)}, ("counts[1]", "at least 1", 0)),
        ({"clip": math.inf}, ("clip", "inf")),
    ],
)
def test_limits_hold_in_files_and_in_python(
    change: dict[str, Any], named: tuple[object, ...]
) -> None:
    with refused(*named):
        Limited(**change)
    with refused("top.", *named):
        parse(Limited, change, "top")
    right = {"share": 1, "counts": [1, 2], "clip": 0.1}  # lists become tuples
    assert Limited(share=1.0, counts=(1, 2), clip=0.1) == parse(Limited, right)
    assert schema(Limited)[0].kind == "a number above 0 and at most 1"
