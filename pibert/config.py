"""Settings: nested frozen dataclasses from TOML, JSON and ``--set a.b=value``.

A setting is a field of a dataclass, named by its dotted path (``training.batch_size``) and typed by
its annotation: bool, int, float, str, ``Literal``, tuples of those, ``X | None``, another dataclass
(a section) or a ``dict``. Unknown keys, values of another type and missing values are errors that
name the path. Three conversions are made: int to float, list to tuple, and the word ``"none"`` to
None where None is allowed, since TOML has no null.

A section takes missing settings from the default of its field: ``pretraining: Fit =
Fit(epochs=50)`` keeps its 50 epochs when a file sets only the batch size.

Annotations also set limits: ``epochs: Count``, ``Annotated[float, Bounds(above=0, most=1)]``. A
dataclass whose ``__post_init__`` calls ``check`` refuses bad values from Python code as well.
"""

import ast
import difflib
import hashlib
import inspect
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pibert.files import read_toml

T = TypeVar("T")
NONE_WORD = "none"
"""None in a file or after ``--set``."""
FORMER_NAMES = "FORMER_NAMES"
"""Attribute of a section with renamed settings: the name in files of earlier versions, by name."""

NO_EFFECT = {"no_effect": True}
"""Metadata of a field that does not change the result, and may differ when a run is resumed."""
ADDED = {"added": True}
"""Metadata of a field that earlier versions lack: their runs used its default."""


class WrongSetting(ValueError):
    """A setting that does not exist, has no value, or has a value of another type."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of ``schema``."""

    name: str
    kind: str
    default: str
    """As written in TOML; empty if a value is required."""
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of a number, as metadata of its annotation."""

    least: int | float | None = None
    above: int | float | None = None
    most: int | float | None = None
    below: int | float | None = None

    def __contains__(self, value: int | float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        limits = {"of at least": self.least, "above": self.above, "at most": self.most}
        words = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None]
        if self.below is not None:
            words.append("finite" if self.below == math.inf else f"below {self.below:g}")
        return " and ".join(words)


Count = Annotated[int, Bounds(least=1)]
NonNegativeInt = Annotated[int, Bounds(least=0)]
NonNegative = Annotated[float, Bounds(least=0, below=math.inf)]
Positive = Annotated[float, Bounds(above=0, below=math.inf)]


def check(config: Any) -> None:
    """Raise ``ValueError`` for a field whose value does not fit its annotation."""
    hints = _hints(cast(Any, type(config)))
    for field in _settings(config):
        as_kind(getattr(config, field.name), hints[field.name], field.name)


def parse(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from nested plain values; errors prefix paths with ``where``."""
    return cast(T, _section(kind, data, where, MISSING))


def as_plain(config: Any, former: bool = False) -> Any:
    """Return all settings as plain JSON values; ``parse`` restores an equal config.

    ``former``: for a hash, with the first names of renamed settings and without those that do not
    change the result or that were added and have their default.
    """
    if is_dataclass(config) and not isinstance(config, type):
        names = getattr(config, FORMER_NAMES, {}) if former else {}
        return {
            names.get(field.name, field.name): as_plain(getattr(config, field.name), former)
            for field in _settings(config)
            if not (former and _is_left_out(config, field))
        }
    if isinstance(config, Mapping):
        return {str(key): as_plain(value, former) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [as_plain(value, former) for value in config]
    assert config is None or isinstance(config, bool | int | float | str), config
    return config


def _is_left_out(config: Any, field: Field[Any]) -> bool:
    """Return whether a setting is no part of a hash."""
    is_default = getattr(config, field.name) == field.default
    return "no_effect" in field.metadata or ("added" in field.metadata and is_default)


def read(
    path: Path | str,
    kind: type[T],
    overrides: Sequence[str] = (),
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> T:
    """Read a dataclass from a TOML file; the last of several overrides of a setting wins.

    ``upgrade`` converts the data of files of earlier versions.
    """
    data = read_toml(path)
    try:
        return parse(kind, overridden(upgrade(data), overrides))
    except ValueError as error:
        raise ValueError(_with_override(error, overrides) or f"{path}: {error}") from None


def with_overrides(config: T, overrides: Sequence[str]) -> T:
    """Return the config with changes, each written as ``a.b=value``."""
    try:
        return parse(type(config), overridden(as_plain(config), overrides))
    except ValueError as error:
        raise ValueError(_with_override(error, overrides) or str(error)) from None


def _with_override(error: ValueError, overrides: Sequence[str]) -> str | None:
    """Append the override whose setting an error names; None if it names none."""
    if "(--set " in str(error):
        return str(error)
    keys = {assignment(text)[0]: text for text in overrides}
    named = [key for key in keys if re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", str(error))]
    return f"{error} (--set {keys[named[-1]]})" if named else None


def overridden(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides to plain data; ``parse`` checks their names and values."""
    merged = deepcopy(dict(data))
    for text in overrides:
        key, value = assignment(text)
        *path, last = key.split(".")
        table = merged
        for depth, name in enumerate(path, start=1):
            if table.get(name) in (None, NONE_WORD):
                table[name] = {}
            table = table[name]
            if not isinstance(table, dict):
                raise WrongSetting(
                    f"{'.'.join(path[:depth])}: expected a section, found {table!r} (--set {text})"
                )
        table[last] = value
    return merged


def identity(config: Any) -> str:
    """Return a hash of all settings that is the same in every process."""
    # Parsed once: an int that was given for a float counts as the float.
    return fingerprint(as_plain(parse(type(config), as_plain(config)), former=True))


def fingerprint(plain: Mapping[str, Any]) -> str:
    """Return a hash of plain values that does not depend on the order of keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted paths at which two plain values differ, each with both values.

    An index into a list of lists is part of the path, ``split.test.0``; a list of numbers is one
    value.
    """
    if a == b:
        return
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = [(key, a.get(key), b.get(key)) for key in {**b, **a}]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        if all(isinstance(value, dict | list) for value in (*a, *b)):
            pairs = list(zip(range(len(a)), a, b, strict=True))
    inner = [d for key, mine, theirs in pairs for d in differences(mine, theirs, _join(where, key))]
    yield from inner or [(where, a, b)]


def first_difference(a: Any, b: Any, where: str = "") -> tuple[str, Any, Any]:
    """The first of ``differences``; equal values give the path ``where`` and themselves."""
    return next(differences(a, b, where), (where, a, b))


def assignment(text: str) -> tuple[str, Any]:
    """Split ``a.b=value`` into key and value; the value is JSON, TOML, a list of these, a word."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ValueError(f"expected KEY=VALUE after --set, found {text!r}")
    return key.strip(), _value(value.strip())


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:
        value = None
    if isinstance(value, bool | int | float | str | list | dict):
        return value
    if text.startswith("[") and text.endswith("]"):  # [u,v]: a shell removes the quotes
        return [_value(word.strip()) for word in text[1:-1].split(",") if word.strip()]
    return text


def as_kind(value: Any, kind: Any, where: str = "", base: Any = MISSING) -> Any:
    """Convert a plain value to an annotation; ``WrongSetting`` if it has another type.

    A section takes missing settings from ``base``.
    """
    form, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if form is Annotated:
        number = as_kind(value, inner[0], where)
        if all(number in bounds for bounds in inner[1:]):
            return number
    elif form in (Union, UnionType):
        choices = [choice for choice in inner if choice is not NoneType]
        if len(choices) < len(inner) and value in (None, NONE_WORD):
            return None
        if len(choices) == 1 and value is not None and is_dataclass(choices[0]):
            return as_kind(value, choices[0], where, base)  # its error names the setting inside
        for choice in sorted(choices, key=lambda choice: choice is not type(value)):
            try:
                return as_kind(value, choice, where, base)
            except WrongSetting:
                continue
    elif is_dataclass(kind) and isinstance(kind, type):
        return _section(kind, value, where, base)
    elif form is Literal:
        if any(type(value) is type(choice) and value == choice for choice in inner):
            return value
    elif form is tuple and isinstance(value, list | tuple):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(as_kind(v, k, f"{where}[{i}]") for i, (v, k) in pairs)
    elif kind is float:
        if type(value) in (int, float) and not math.isnan(value):
            return float(value)
    elif kind is dict or form is dict:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            inside = inner[1] if inner else Any
            return {k: as_kind(v, inside, _join(where, k)) for k, v in value.items()}
    elif type(value) is kind:
        return value
    raise _wrong(value, kind, where)


def _section(kind: type, data: Any, where: str, base: Any) -> Any:
    """Build a dataclass from a mapping; ``base`` and then the defaults fill what is missing."""
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        raise _wrong(data, kind, where)
    base = base if isinstance(base, kind) else MISSING
    for name, former in getattr(kind, FORMER_NAMES, {}).items():
        if former in data and name not in data:
            data = {name if key == former else key: value for key, value in data.items()}
    known, hints = {field.name: field for field in _settings(kind)}, _hints(kind)
    for key in data:
        if key not in known:
            raise _unknown(where, str(key), kind)
    values = {}
    for name, field in known.items():
        path, default = _join(where, name), _default(field, base)
        if name in data:
            values[name] = as_kind(data[name], hints[name], path, default)
        elif default is MISSING:
            raise WrongSetting(f"{path} is missing: expected {_in_words(hints[name])}")
        else:
            values[name] = default
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _settings(kind: Any) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init]


def _default(field: Field[Any], base: Any) -> Any:
    if hasattr(base, field.name):
        return getattr(base, field.name)
    return field.default_factory() if field.default_factory is not MISSING else field.default


def schema(kind: type) -> tuple[Setting, ...]:
    """All settings of a dataclass and its sections, in the order of declaration."""
    return tuple(_rows(kind, "", MISSING))


def _rows(kind: type, where: str, base: Any) -> Iterator[Setting]:
    hints, meanings = _hints(kind), _meanings(kind)
    for field in _settings(kind):
        path, default, hint = _join(where, field.name), _default(field, base), hints[field.name]
        choices = (c for c in (hint, *get_args(hint)) if isinstance(c, type) and is_dataclass(c))
        section = next(choices, None)
        if section is None or section is not hint:
            written = "" if default is MISSING else NONE_WORD
            if default not in (MISSING, None):
                written = "{}" if is_dataclass(default) else json.dumps(as_plain(default))
            meaning = meanings.get(field.name, "")
            yield Setting(name=path, kind=_in_words(hint), default=written, meaning=meaning)
        if section is not None:
            yield from _rows(section, path, default)


def _meanings(kind: type) -> dict[str, str]:
    """The docstring under each attribute of a class and of its bases, on one line."""
    meanings: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError, SyntaxError):
            continue  # a class without a source file
        body = cast(ast.ClassDef, tree).body
        for first, second in zip(body, body[1:], strict=False):
            if not (isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name)):
                continue
            if isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
                text = str(second.value.value).replace("``", "")
                meanings[first.target.id] = " ".join(text.split())
    return meanings


def _join(where: str, name: str | int) -> str:
    return f"{where}.{name}" if where else str(name)


def _wrong(value: Any, kind: Any, where: str) -> WrongSetting:
    found = NONE_WORD if value is None else textwrap.shorten(repr(value), 60, placeholder=" ...")
    prefix = f"{where}: " if where else ""
    return WrongSetting(f"{prefix}expected {_in_words(kind)}, found {found}")


def _unknown(where: str, name: str, kind: type) -> WrongSetting:
    known = [field.name for field in _settings(kind)]
    near = [_join(where, key) for key in difflib.get_close_matches(name, known, n=1)]
    if not near:  # a setting of a section
        near = [_join(where, s.name) for s in schema(kind) if s.name.endswith(f".{name}")][:3]
    meant = " or ".join(repr(setting) for setting in near)
    advice = f"did you mean {meant}?" if near else f"choose from: {', '.join(known)}"
    return WrongSetting(f"there is no setting {_join(where, name)!r}; {advice}")


def _in_words(kind: Any) -> str:
    form, inner = get_origin(kind), get_args(kind)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    words |= {NoneType: NONE_WORD, dict: "a table", Any: "a value"}
    if form in (Union, UnionType):
        return " or ".join(map(_in_words, inner))
    if form is Annotated:
        return " ".join([_in_words(inner[0]), *map(str, inner[1:])])
    if form is Literal:
        return "one of " + ", ".join(map(json.dumps, inner))
    if form is tuple and inner[-1] is Ellipsis:
        return f"a list, each {_in_words(inner[0])}"
    if form is tuple:
        return f"a list of {len(inner)} ({', '.join(map(_in_words, inner))})"
    return "a section" if is_dataclass(kind) else words.get(form or kind, str(kind))
