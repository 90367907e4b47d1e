"""Settings: what is written is what is meant, or it is refused by name."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pibert.config import (
    WrongSetting,
    as_kind,
    as_plain,
    assignment,
    fingerprint,
    first_difference,
    identity,
    parse,
    read,
    schema,
    with_overrides,
)


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
    made: int = field(default=0, init=False)


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
def test_plain_values_give_the_config_back_also_through_json(study: Study) -> None:
    plain = as_plain(study)
    assert parse(Study, plain) == study
    assert parse(Study, json.loads(json.dumps(plain))) == study
    assert "made" not in plain


def test_lists_become_tuples_and_whole_numbers_become_floats() -> None:
    study = parse(Study, {"title": "a", "channels": ["u"], "training": {"optimiser": {"rate": 1}}})
    assert study.channels == ("u",)
    assert type(study.training.optimiser.rate) is float


def test_a_section_is_filled_from_the_default_of_its_field() -> None:
    study = parse(Study, {"title": "a", "pretraining": {"optimiser": {"clip": 2.0}}})
    assert study.pretraining == Fit(epochs=50, optimiser=Optimiser(rate=5e-4, clip=2.0))
    # One that is not there by default is filled from its own defaults.
    assert parse(Study, {"title": "a", "extra": {}}).extra == Fit()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"epoch": 3}}, "no setting 'training.epoch'; did you mean 'training.epochs'"),
        ({"epochs": 3}, "no setting 'epochs'; did you mean 'training.epochs' or 'pre"),
        (
            {"training": {"optimiser": {"momentum": 1}}},
            "training.optimiser.momentum'; choose",
        ),
        ({"made": 3}, "no setting 'made'; choose from: title, channels"),
        ({"title": 3}, "title: expected a text, found 3"),
        ({"training": {"epochs": 2.0}}, "training.epochs: expected a whole number, found 2.0"),
        ({"training": {"epochs": True}}, "training.epochs: expected a whole number, found True"),
        ({"training": {"epochs": "3"}}, "training.epochs: expected a whole number, found '3'"),
        ({"training": {"compile": 1}}, "training.compile: expected true or false, found 1"),
        (
            {"training": {"optimiser": {"rate": "x"}}},
            "rate: expected a number, found 'x'",
        ),
        ({"training": {"optimiser": {"rate": True}}}, "optimiser.rate: expected a number"),
        ({"training": {"optimiser": {"rate": math.nan}}}, "expected a number, found nan"),
        ({"training": {"optimiser": {"rate": -1}}}, "^training.optimiser: rate must be positive"),
        (
            {"training": {"optimiser": {"name": "sgd"}}},
            'training.optimiser.name: expected one of "adamw", "muon", found \'sgd\'',
        ),
        ({"training": {"optimiser": {"betas": [0.9]}}}, r"expected a list of 2 .*, found \[0.9\]"),
        ({"training": {"optimiser": {"betas": [0.9, "x"]}}}, r"betas\[1\]: expected a number"),
        ({"training": {"optimiser": {"clip": "x"}}}, "clip: expected a number or none, found 'x'"),
        ({"training": None}, "training: expected a section, found none"),
        ({"extra": 3}, "extra: expected a section, found 3"),
        ({"channels": "u"}, "channels: expected a list, each a text, found 'u'"),
        ({"options": [1]}, "options: expected a table"),
        ({"weights": {"mpp": "x"}}, "weights.mpp: expected a number, found 'x'"),
        ({"gap": "wide"}, 'gap: expected a whole number or one of "auto", found'),
        ({"gap": True}, "gap: expected"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(Study, {"title": "a", **change})


def test_a_setting_without_value_is_named() -> None:
    with pytest.raises(WrongSetting, match="study.title is missing: expected a text"):
        parse(Study, {}, "study")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("1_000", 1000),
        ("inf", math.inf),
        ("true", True),
        ("null", None),
        ("adamw", "adamw"),
        ('"3"', "3"),
        ("'3'", "3"),
        ("a=b", "a=b"),
        ("", ""),
        ("2024-01-01", "2024-01-01"),
        ("[1, 2.5]", [1, 2.5]),
        ("[u,v]", ["u", "v"]),
        ("[]", []),
        ('{"a": 1}', {"a": 1}),
        ("{a = 1}", {"a": 1}),
        ("data/wake 1.h5", "data/wake 1.h5"),
    ],
)
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
    ("change", "message"),
    [
        ("training.epoch=3", "did you mean 'training.epochs'"),
        ("training.optimizer.rate=3", "no setting 'training.optimizer'; did you mean"),
        ("epochs=3", "did you mean 'training.epochs'"),
        ("zzz=3", "no setting 'zzz'; choose from: title"),
        ("title.x=3", "title is a text and has no setting 'x' inside"),
        ("training.epochs=many", "training.epochs: expected a whole number, found 'many' .--set"),
        ("training.epochs=none", "training.epochs: expected a whole number, found 'none'"),
        ("training=3", "training: expected a section, found 3"),
        ("weights.mpp=x", "weights.mpp: expected a number"),
        ("training.optimiser.rate=-1", "training.optimiser: rate must be positive"),
        ("training.epochs", "expected KEY=VALUE after --set, found 'training.epochs'"),
        ("=3", "expected KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_named(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_overrides(FULL, [change])


def test_an_override_leaves_the_config_that_it_changes_alone() -> None:
    before = as_plain(FULL)
    with_overrides(FULL, ["options.width=64", "options.nested.skip=true"])
    assert as_plain(FULL) == before


def test_a_file_is_read_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('title = "a"\npretraining = "none"\n[training.optimiser]\nclip = "none"\n')
    study = read(path, Study, ["training.epochs=5"])
    assert study == Study(
        title="a", pretraining=None, training=Fit(epochs=5, optimiser=Optimiser(clip=None))
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"title = \n", r"study.toml: not valid TOML: .*line 1"),
        (b'title = "a"\n[training]\nepochs = 3\nepochs = 4\n', "line 4"),
        (b'title = "\xff"', "expected text in UTF-8"),
        (b"titel = 3", "study.toml: there is no setting 'titel'; did you mean 'title'"),
        (b"title = 2024-01-01", "study.toml: title: expected a text"),
        (b'title = "a"\n[training.optimiser]\nrate = 0', "study.toml: training.optimiser: rate"),
        (b'title = "a"\ntraining = 3', "training: expected a section, found 3"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(path, Study)


def test_an_override_into_what_is_no_section_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('title = "a"\ntraining = 3\n')
    with pytest.raises(ValueError, match="training: expected a section, found 3"):
        read(path, Study, ["training.epochs=3"])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.toml"):
        read(tmp_path / "nowhere.toml", Study)


def test_the_identity_is_that_of_the_values() -> None:
    same = parse(Study, as_plain(FULL))
    assert identity(same) == identity(FULL)
    assert identity(replace(FULL, gap=5)) != identity(FULL)
    # 1 and 1.0 are equal, and so are configs that hold them.
    whole = parse(Study, {"title": "a", "training": {"optimiser": {"clip": 1}}})
    assert identity(whole) == identity(Study(title="a"))


def test_the_identity_is_the_same_in_another_process() -> None:
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
    from pibert.models.pibert import PIBERTConfig

    assert found.stdout.strip() == identity(PIBERTConfig(dropout=0.1))


def test_a_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1, "b": [2]}) != fingerprint({"a": 1, "b": [3]})


def test_a_value_alone_takes_its_kind() -> None:
    assert as_kind([1, 2], tuple[float, ...]) == (1.0, 2.0)
    with pytest.raises(WrongSetting, match="^expected a whole number, found 'x'"):
        as_kind("x", int)


def test_the_schema_tells_kind_default_and_meaning() -> None:
    rows = {row.name: row for row in schema(Study)}
    assert list(rows)[:4] == ["title", "channels", "size", "start"]
    assert rows["title"].default == "" and rows["start"].default == "none"
    assert rows["training.epochs"].meaning == "Passes over the data."
    assert rows["training.epochs"].kind == "a whole number"
    assert rows["training.epochs"].default == "120"
    # The default of the field, not of the class of its section.
    assert rows["pretraining.epochs"].default == "50"
    assert rows["pretraining.optimiser.rate"].default == "0.0005"
    assert rows["training.optimiser.rate"].meaning == "Learning rate at its highest."
    assert rows["training.optimiser.clip"].meaning == ""
    assert rows["training.optimiser.betas"].default == "[0.9, 0.95]"
    assert rows["extra"].default == "none" and rows["extra"].kind == "a section or none"
    assert rows["extra"].meaning == "A further stage."
    assert "training" not in rows and "made" not in rows


def test_the_schema_has_the_settings_of_a_base_class() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Longer(Fit):
        patience: int = 5
        """Epochs to wait."""

    meanings = {row.name: row.meaning for row in schema(Longer)}
    assert meanings["epochs"] == "Passes over the data."
    assert meanings["patience"] == "Epochs to wait."


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"x": 1, "y": {"z": 2}}, {"x": 1, "y": {"z": 3}}, ("y.z", 2, 3)),
        ({"x": 1}, {"x": 1, "y": 2}, ("y", None, 2)),
        ({"x": [[0, 4], [1, 9]]}, {"x": [[0, 4], [1, 8]]}, ("x.1", [1, 9], [1, 8])),
        ({"x": [1, 2]}, {"x": [1]}, ("x", [1, 2], [1])),
        (3, 4, ("", 3, 4)),
    ],
)
def test_the_first_difference_is_named_by_its_path(
    a: object, b: object, expected: tuple[str, object, object]
) -> None:
    assert first_difference(a, b) == expected
    place, *values = first_difference(a, b, "top")
    assert place == ("top." + expected[0]).strip(".") and values == list(expected[1:])
