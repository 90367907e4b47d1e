"""Settings: plain data (TOML, JSON, ``--set a.b=value``) to nested frozen dataclasses, strictly.

A setting is a field of a dataclass and is named by its dotted path, ``training.batch_size``. Its
annotation says what it may be: bool, int, float, str, ``Literal``, tuples of those, ``X | None``,
another dataclass (a section), or a ``dict`` that is passed on as it is. Nothing is guessed: a key
that does not exist, a value of another kind and a setting without value are errors that name the
path. The only liberties: a whole number is taken for a float, a list for a tuple, and the word
``"none"`` for None where None is possible, as TOML has no null.

A section that is left out, wholly or in part, is filled from the default of its field, so
``pretraining: Fit = Fit(epochs=50)`` keeps its 50 epochs when a file sets only the batch size.
"""

import ast
import difflib
import hashlib
import inspect
import json
import math
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pibert.textfiles import read_toml

T = TypeVar("T")
NONE_WORD = "none"
"""How None is written in a file or after ``--set``."""


class WrongSetting(ValueError):
    """A setting that does not exist, has no value, or has one of another kind."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting as a list of all of them shows it."""

    name: str
    kind: str
    default: str
    """As it is written in TOML; empty where a value must be given."""
    meaning: str


def parse(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from plain data, every key and value checked.

    Args:
        kind: A dataclass; sections are fields that are dataclasses themselves.
        data: Nested plain values, as from TOML or JSON.
        where: Dotted path of this data, in front of the paths that errors name.
    """
    return cast(T, _section(kind, data, where, MISSING))


def as_plain(config: Any) -> Any:
    """Plain values for JSON, all of them; ``parse`` makes an equal config of them."""
    if is_dataclass(config) and not isinstance(config, type):
        return {field.name: as_plain(getattr(config, field.name)) for field in _settings(config)}
    if isinstance(config, Mapping):
        return {str(key): as_plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [as_plain(value) for value in config]
    assert config is None or isinstance(config, bool | int | float | str), config
    return config


def read(path: Path | str, kind: type[T], overrides: Sequence[str] = ()) -> T:
    """A dataclass from a TOML file.

    Args:
        path: The file.
        kind: The dataclass.
        overrides: Changes such as ``training.epochs=3``, the last one wins.
    """
    changed = overridden(kind, read_toml(path), overrides)
    try:
        return parse(kind, changed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def with_overrides(config: T, overrides: Sequence[str]) -> T:
    """A config with some settings changed, each written as ``a.b=value``."""
    return parse(type(config), overridden(type(config), as_plain(config), overrides))


def overridden(kind: type, data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The data with changes put in; names and values of the changes are checked first."""
    merged = deepcopy(dict(data))
    for text in overrides:
        key, value = assignment(text)
        path = key.split(".")
        try:
            found = _kind_at(kind, path, "")
            if not (_section_of(found) and isinstance(value, dict)):
                as_kind(value, found, key)
        except WrongSetting as error:
            raise WrongSetting(f"{error} (--set {text})") from None
        place = merged
        for number, name in enumerate(path[:-1]):
            inside = place.get(name)
            if inside in (None, NONE_WORD):
                inside = place[name] = {}
            if not isinstance(inside, dict):
                raise WrongSetting(
                    f"{'.'.join(path[: number + 1])}: expected a section, found {inside!r}"
                )
            place = inside
        place[path[-1]] = value
    return merged


def identity(config: Any) -> str:
    """Equal for equal configs, in every process; another one as soon as any value differs."""
    # Read back once: an int that was given for a float counts as the float.
    return fingerprint(as_plain(parse(type(config), as_plain(config))))


def fingerprint(plain: Mapping[str, Any]) -> str:
    """Hash of plain values that does not depend on the order of keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(a: Any, b: Any, where: str = "") -> tuple[str, Any, Any]:
    """Where two plain values part, as a dotted path, and the two values there.

    A place in a list of lists counts too: ``split.test.0``; a list of numbers is a value.
    """
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = [(key, a.get(key), b.get(key)) for key in {**b, **a}]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        if all(isinstance(value, dict | list) for value in (*a, *b)):
            pairs = list(zip(range(len(a)), a, b, strict=True))
    for key, mine, theirs in pairs:
        if mine != theirs:
            return first_difference(mine, theirs, _join(where, str(key)))
    return where, a, b


def assignment(text: str) -> tuple[str, Any]:
    """``a.b=value`` in two: the value as in JSON or TOML, a list of such, or else a word."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ValueError(f"expected KEY=VALUE after --set, found {text!r}")
    return key.strip(), _value(value.strip())


def schema(kind: type) -> tuple[Setting, ...]:
    """All settings of a dataclass, sections opened, in the order in which they are declared."""
    return tuple(_rows(kind, "", MISSING))


def as_kind(value: Any, kind: Any, where: str = "") -> Any:
    """A plain value as an annotation wants it; ``WrongSetting`` where it is of another kind."""
    return _converted(value, kind, where, MISSING)


def _section(kind: type, data: Any, where: str, base: Any) -> Any:
    """A dataclass from a mapping; what is missing comes from ``base``, then from the defaults."""
    if not isinstance(data, Mapping):
        raise _wrong(data, kind, where)
    base = base if isinstance(base, kind) else MISSING
    known, hints = {field.name: field for field in _settings(kind)}, get_type_hints(kind)
    for key in data:
        if key not in known:
            raise _unknown(where, str(key), kind)
    values = {}
    for name, field in known.items():
        path, default = _join(where, name), _default(field, base)
        if name in data:
            values[name] = _converted(data[name], hints[name], path, default)
        elif default is MISSING:
            raise WrongSetting(f"{path} is missing: expected {_in_words(hints[name])}")
        else:
            values[name] = default
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def _converted(value: Any, kind: Any, where: str, base: Any) -> Any:
    form, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if form in (Union, UnionType):
        return _either(value, kind, where, base)
    if is_dataclass(kind) and isinstance(kind, type):
        return _section(kind, value, where, base)
    if form is Literal:
        if any(type(value) is type(choice) and value == choice for choice in inner):
            return value
    elif form is tuple and isinstance(value, list | tuple):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(_converted(v, k, f"{where}[{i}]", MISSING) for i, (v, k) in pairs)
    elif kind is float and type(value) in (int, float) and not math.isnan(value):
        return float(value)
    elif kind is dict or form is dict:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            inside = inner[1] if inner else Any
            return {k: _converted(v, inside, _join(where, k), MISSING) for k, v in value.items()}
    elif isinstance(kind, type) and kind is not float and type(value) is kind:
        return value
    raise _wrong(value, kind, where)


def _either(value: Any, kind: Any, where: str, base: Any) -> Any:
    """A value of a union."""
    choices = [choice for choice in get_args(kind) if choice is not NoneType]
    if len(choices) < len(get_args(kind)) and value in (None, NONE_WORD):
        return None
    if len(choices) == 1 and (value is not None and is_dataclass(choices[0])):
        return _converted(value, choices[0], where, base)  # its error says more
    for choice in sorted(choices, key=lambda choice: choice is not type(value)):
        try:
            return _converted(value, choice, where, base)
        except WrongSetting:
            continue
    raise _wrong(value, kind, where)


def _kind_at(kind: Any, path: list[str], where: str) -> Any:
    """The annotation of a setting, found by its path."""
    if not path or kind is Any:
        return kind
    section = _section_of(kind)
    if section is None:
        tables = [k for k in (kind, *get_args(kind)) if k is dict or get_origin(k) is dict]
        if tables:
            return _kind_at((*get_args(tables[0]), Any, Any)[1], path[1:], _join(where, path[0]))
        raise WrongSetting(f"{where} is {_in_words(kind)} and has no setting {path[0]!r} inside")
    hints = {field.name: get_type_hints(section)[field.name] for field in _settings(section)}
    if path[0] not in hints:
        raise _unknown(where, path[0], section)
    return _kind_at(hints[path[0]], path[1:], _join(where, path[0]))


def _section_of(kind: Any) -> type | None:
    """The dataclass of a section, also of one that may be None."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((c for c in choices if isinstance(c, type) and is_dataclass(c)), None)


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
    if text.startswith("[") and text.endswith("]"):  # [u,v]: a shell eats the quotes
        return [_value(word.strip()) for word in text[1:-1].split(",") if word.strip()]
    return text


def _settings(kind: Any) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init]


def _default(field: Field[Any], base: Any) -> Any:
    if hasattr(base, field.name):
        return getattr(base, field.name)
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _rows(kind: type, where: str, base: Any) -> Iterator[Setting]:
    hints, meanings = get_type_hints(kind), _meanings(kind)
    for field in _settings(kind):
        path, default = _join(where, field.name), _default(field, base)
        hint = hints[field.name]
        section = _section_of(hint)
        if section is None or section is not hint:
            as_written = NONE_WORD if default is None else json.dumps(_or_empty(default))
            yield Setting(
                name=path,
                kind=_in_words(hint),
                default="" if default is MISSING else as_written,
                meaning=meanings.get(field.name, ""),
            )
        if section is not None:
            yield from _rows(section, path, default)


def _or_empty(default: Any) -> Any:
    """A default as plain values; of a section only that there is one."""
    return {} if default is MISSING or is_dataclass(default) else as_plain(default)


def _meanings(kind: type) -> dict[str, str]:
    """The docstring under each attribute of a class and of its bases, on one line."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError, SyntaxError):
            continue  # made without a source file
        body = cast(ast.ClassDef, tree).body
        for first, second in zip(body, body[1:], strict=False):
            if not (isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name)):
                continue
            if isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
                text = str(second.value.value).replace("``", "")
                found[first.target.id] = " ".join(text.split())
    return found


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(value: Any, kind: Any, where: str) -> WrongSetting:
    found = NONE_WORD if value is None else textwrap.shorten(repr(value), 60, placeholder=" ...")
    place = f"{where}: " if where else ""
    return WrongSetting(f"{place}expected {_in_words(kind)}, found {found}")


def _unknown(where: str, name: str, kind: type) -> WrongSetting:
    known = [field.name for field in _settings(kind)]
    near = [_join(where, key) for key in difflib.get_close_matches(name, known, n=1)]
    if not near:  # it may be there, but in a section
        near = [_join(where, s.name) for s in schema(kind) if s.name.endswith(f".{name}")][:3]
    meant = " or ".join(repr(setting) for setting in near)
    advice = f"did you mean {meant}?" if near else f"choose from: {', '.join(known)}"
    return WrongSetting(f"there is no setting {_join(where, name)!r}; {advice}")


def _in_words(kind: Any) -> str:
    form, inner = get_origin(kind), get_args(kind)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    words |= {NoneType: NONE_WORD, dict: "a table", Any: "a value"}
    if form in (Union, UnionType):
        return " or ".join(_in_words(choice) for choice in inner)
    if form is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in inner)
    if form is tuple and inner[-1] is Ellipsis:
        return f"a list, each {_in_words(inner[0])}"
    if form is tuple:
        return f"a list of {len(inner)} ({', '.join(_in_words(choice) for choice in inner)})"
    if form is dict:
        return "a table"
    return "a section" if is_dataclass(kind) else words.get(kind, str(kind))
