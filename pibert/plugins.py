"""Models, readers and metrics of other packages.

An installed package adds them with entry points of the groups ``pibert.models``,
``pibert.readers`` and ``pibert.metrics``. ``PIBERT_IMPORT`` (``pibert --import``) names modules and
``.py`` files that add them to the tables when they are imported. Nothing is imported before a table
is asked for what it does not have itself.
"""

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from pibert.notes import Note, warn

IMPORT = "PIBERT_IMPORT"
"""Environment variable: modules and files to import, separated as in ``PATH``."""
Value = TypeVar("Value")
_imported: set[str] = set()


class PluginError(ImportError):
    """A package or module that cannot be used; the message names it."""


class Table(dict[str, Value]):
    """A table to which other packages add entries, imported when they are asked for.

    Iteration gives all names; ``items`` and ``values`` are those imported so far.

    Args:
        group: Of the entry points.
        own: The entries of this package, which others do not replace.
        convert: Makes an entry of what an entry point names; ValueError if it cannot.
    """

    def __init__(
        self,
        group: str,
        own: Mapping[str, Value],
        convert: Callable[[Any], Value] = lambda found: found,
    ) -> None:
        super().__init__(own)
        self._group, self._own, self._convert = group, frozenset(own), convert

    def __missing__(self, name: str) -> Value:
        import_named()
        if name in self.keys():
            return self[name]
        if name not in (installed := _installed(self._group)):
            raise KeyError(name)
        self[name] = self._load(installed[name])
        return self[name]

    def __contains__(self, name: object) -> bool:
        if name in self.keys():
            return True
        import_named()
        return name in self.keys() or name in _installed(self._group)

    def __iter__(self) -> Iterator[str]:
        import_named()
        return iter(dict.fromkeys([*self.keys(), *_installed(self._group)]))

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return self[name] if name in self else default

    def added(self) -> dict[str, Value]:
        """Entries of others. One that cannot be imported is left out, with a note."""
        found = {}
        for name in self:
            if name not in self._own:
                try:
                    found[name] = self[name]
                except PluginError as error:
                    warn(Note("plugin", str(error), subject=name))
        return found

    def _load(self, entry: EntryPoint) -> Value:
        try:
            return self._convert(entry.load())
        except Exception as error:
            raise PluginError(
                f"{package_of(entry)} cannot be used, which adds {entry.name!r} to {self._group} "
                f"({entry.value}): {_reason(error)}; repair or uninstall that package"
            ) from error


def add_named(modules: Sequence[str]) -> None:
    """Add modules and files to ``PIBERT_IMPORT``, of this process and those that it starts."""
    named = [name for name in os.environ.get(IMPORT, "").split(os.pathsep) if name]
    for name in modules:
        is_file = name.endswith(".py")
        if not (Path(name).is_file() if is_file else _is_installed(name)):
            raise ValueError(
                f"--import {name}: there is no such {'file' if is_file else 'module'}; name an "
                "installed module, or a file that ends in .py"
            )
        named.append(os.path.abspath(name) if is_file else name)
    os.environ[IMPORT] = os.pathsep.join(dict.fromkeys(named))


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def import_named() -> None:
    """Import the modules and files that ``PIBERT_IMPORT`` names, each once."""
    for name in os.environ.get(IMPORT, "").split(os.pathsep):
        if not name or name in _imported:
            continue
        _imported.add(name)
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except Exception as error:
            _imported.discard(name)
            raise PluginError(
                f"{name} cannot be imported (--import, {IMPORT}): {_reason(error)}; repair it, or "
                "do not name it"
            ) from error


def _import_file(path: Path) -> None:
    path, name = path.resolve(), path.stem
    present = sys.modules.get(name)
    if present is not None:
        if Path(getattr(present, "__file__", None) or "").resolve() == path:
            return
        raise ImportError(f"another module is called {name!r}; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    sys.path.append(str(path.parent))  # worker processes import it by its name


def origin_of(kind: type) -> str | None:
    """Where a class comes from: package and version, or a file; None: this package."""
    top = kind.__module__.partition(".")[0]
    if top == "pibert":
        return None
    for group in ("pibert.models", "pibert.readers", "pibert.metrics"):
        for entry in _installed(group).values():
            if entry.module.partition(".")[0] == top:
                return package_of(entry)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else kind.__module__


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package that has an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


@functools.cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
