"""OpenFOAM's file format: keywords and values, lists, nested dictionaries, macros and includes.

``$name`` refers to an entry of the enclosing dictionaries; ``#include`` inserts another file of the
case. Lists of numbers become arrays, from ASCII or binary. Code (``#calc``, ``#codeStream``) is not
run: such a value is ``UNKNOWN``. Nesting, macros and included files are limited.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from pibert.data.readers.shared.files import parse_numbers

UNKNOWN = "#unknown"
"""Value of an entry that only OpenFOAM can evaluate."""

# An unterminated comment or code extends to the end of the file, so it is searched for once.
_SPACE = re.compile(rb"(?:\s+|//[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_TOKEN = re.compile(
    rb'#\{.*?(?:#\}|\Z)|"(?:[^"\\]|\\.)*"|[{}()\[\];]|\$\{[^{}]*\}|[^\s{}()\[\];"]+', re.DOTALL
)
_LIST = re.compile(rb"List<(\w+)>")
_COUNT = re.compile(rb"\s*(\d+)\s*([({])|\s*([({])")
_WIDTHS = {"scalar": 1, "vector": 3, "symmTensor": 6, "tensor": 9, "label": 1}
_WITHOUT_BRACKETS = bytes.maketrans(b"(){}", b"    ")
_MOST_VALUES = 1 << 40
_DEEPEST = 100
_MOST_FILES = 100
_MOST_WORDS = 1_000_000
_MOST_REPEATS = 4
_MOST_GROUPS = 8
_LONGEST_NAME = 200


def matches(pattern: str, name: str) -> bool:
    """Whether a regular expression of a keyword, such as ``(upper|lower)Wall.*``, matches a name.

    A malformed pattern matches nothing. Backtracking takes forever with some patterns, so those
    with repeated groups or many repeats are followed without it.
    """
    repeats, groups = len(re.findall(r"[*+?{]", pattern)), pattern.count("(")
    if groups > _MOST_GROUPS or max(len(name), len(pattern)) > _LONGEST_NAME:
        raise ValueError(
            f"the pattern {pattern[:40]!r} or the name {name[:40]!r} is longer than "
            f"{_LONGEST_NAME} letters, or has more than {_MOST_GROUPS} groups; name the patches "
            "instead"
        )
    is_slow = max(repeats, groups) > _MOST_REPEATS or re.search(r"\)[*+{]", pattern)
    try:
        if is_slow:
            return len(name) in _ends(_parser.parse(pattern), name, {0})
        return re.fullmatch(pattern, name) is not None
    except (re.error, OverflowError):
        return False


def _ends(pattern: Any, name: str, starts: set[int]) -> set[int]:
    """All positions where a match that begins at one of ``starts`` may end."""
    for index, (what, detail) in enumerate(pattern):
        if what is _parser.BRANCH:
            starts = set().union(*(_ends(branch, name, starts) for branch in detail[1]))
        elif what is _parser.SUBPATTERN:
            starts = _ends(detail[-1], name, starts)
        elif what in (_parser.MAX_REPEAT, _parser.MIN_REPEAT):
            least, most, inner = detail
            for _ in range(least):
                if (after := _ends(inner, name, starts)) == starts:
                    break
                starts = after
            newest = starts
            for _ in range(most - least):
                if not (newest := _ends(inner, name, newest) - starts):
                    break
                starts = starts | newest
        elif what in (_parser.ASSERT, _parser.ASSERT_NOT, _parser.GROUPREF):
            raise re.error("not a regular expression of OpenFOAM")
        else:
            single = _compiler.compile(pattern[index : index + 1])
            starts = {found.end() for start in starts if (found := single.match(name, start))}
    return starts


class Dictionary(dict[str, Any]):
    """Entries by keyword: a list of words, lists and arrays, or a dictionary.

    Quoted keywords are regular expressions. They apply where no keyword matches; the last one wins.
    """

    def __init__(self, parent: "Dictionary | None" = None) -> None:
        super().__init__()
        self.parent = parent
        self.patterns: list[tuple[str, Any]] = []

    def find(self, *keywords: str) -> Any:
        """The entry of the first keyword that exists; None if none does."""
        for keyword in keywords:
            if keyword in self:
                return self[keyword]
        for pattern, value in reversed(self.patterns):
            if matches(pattern, keywords[0]):
                return value
        return None

    def resolve(self, name: str) -> Any:
        """The value of a macro, from this dictionary or an enclosing one."""
        scope: Dictionary | None = self
        if name.startswith(":"):
            while scope is not None and scope.parent is not None:
                scope = scope.parent
        name = name.lstrip(":.")
        if name.count(".") > _DEEPEST:
            return [UNKNOWN]
        first, _, rest = name.partition(".")
        while scope is not None:
            if name in scope:
                return scope[name]
            if rest and isinstance(inner := scope.get(first), Dictionary):
                return inner.resolve(rest)
            scope = scope.parent
        return [UNKNOWN]


@dataclass
class _Expansion:
    """The macros and included files that a file has expanded so far."""

    open: list[Path] = field(default_factory=list)
    """The files being read, each included by the one before."""
    files: int = 0
    words: int = 0
    depth: int = 0

    def add(self, *, words: int = 0, depth: int = 0) -> None:
        self.words, self.depth = self.words + words, self.depth + depth
        if self.words > _MOST_WORDS or self.depth > _DEEPEST:
            raise ValueError(
                f"it is nested more than {_DEEPEST} levels deep, or its macros expand to more than "
                f"{_MOST_WORDS} words"
            )


class Parser:
    """Parses one file.

    ``head`` is the header (``FoamFile``) for a block of a file that has none. Included files must
    be in ``case`` (default: the parent of the file's folder); ``expansion`` is that of the file
    that includes this one.
    """

    def __init__(
        self,
        data: bytes,
        path: Path,
        head: Dictionary | None = None,
        *,
        case: Path | None = None,
        expansion: _Expansion | None = None,
    ) -> None:
        self.data, self.path, self.position = data, path, 0
        self.case = case or path.absolute().parent.parent
        self._expansion = expansion or _Expansion([path.absolute()])
        self.head, self.label, self.scalar = head or Dictionary(), "<i4", "<f8"
        if data.startswith(b"FoamFile", self._skip()):
            self.position += len(b"FoamFile")
            self._expect(b"{")
            self.head = self._entries(Dictionary(), b"}")
        arch = str((self.head.get("arch") or [""])[0])
        if "label=64" in arch:
            self.label = "<i8"
        if "scalar=32" in arch:
            self.scalar = "<f4"

    def entries(self) -> Dictionary:
        """The rest of the file as a dictionary."""
        return self._entries(Dictionary(), b"")

    def named(self) -> dict[str, Dictionary]:
        """A list of named dictionaries, such as the patches of a mesh."""
        word = self._next()
        if word.isdigit():
            word = self._next()
        if word != b"(":
            raise ValueError(f"expected a list, found {word[:20]!r}")
        found: dict[str, Dictionary] = {}
        while (name := self._next()) != b")":
            self._expect(b"{")
            found[name.decode()] = self._entries(Dictionary(), b"}")
        return found

    def mesh_numbers(self, dtype: str, width: int = 1) -> np.ndarray:
        """The next list, as ``numbers``, of at most as many values as the file has bytes.

        A uniform list, ``1000{0}``, may declare any number; the cells limit it in fields alone.
        """
        values = self.numbers(dtype, width)
        if len(values) > len(self.data):
            raise ValueError(f"it declares {len(values)} values in {len(self.data)} bytes")
        return values

    def numbers(self, dtype: str, width: int = 1) -> np.ndarray:
        """The next list of numbers, (n,) or (n, width); a uniform list takes no memory."""
        count, bracket = self._list_start()
        kind = "f8" if "f" in dtype else "i8"
        if count is not None and count > _MOST_VALUES:
            raise ValueError(f"it declares a list of {count} values")
        if bracket == b"{":
            one = _shaped(self._ascii_until(rb"\}", kind), 1, width)
            return np.broadcast_to(one, (count or 0, *one.shape[1:]))
        if count == 0:
            self._expect(b")")
            return np.empty((0, width) if width > 1 else 0, kind)
        if self.head.get("format") == ["binary"] and count is not None:
            end = self.position + count * width * np.dtype(dtype).itemsize
            if self.data[end : end + 1] != b")":
                raise ValueError(f"it ends within a list of {count} values")
            values = np.frombuffer(self.data, dtype, count * width, self.position)
            self.position = end + 1
            return _shaped(values.astype(kind), count, width)
        return _shaped(self._ascii_until(rb"\)\s*\)" if width > 1 else rb"\)", kind), count, width)

    def counted_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """A list of lists, such as ASCII faces: all their numbers, and where each list ends."""
        count, _ = self._list_start()
        flat = _parse_ascii(self.data[self.position : self.data.rfind(b")")], "i8")
        if count is None or count > len(flat):
            raise ValueError(f"{len(flat)} numbers where {count} lists were announced")
        heads = [0]
        for _ in range(count):
            size = int(flat[heads[-1]]) if heads[-1] < len(flat) else -1
            if size < 0:
                raise ValueError(f"list {len(heads)} of {count} has no length")
            heads.append(heads[-1] + 1 + size)
        if heads[-1] != len(flat):
            raise ValueError(f"{len(flat)} numbers where {heads[-1]} were announced")
        ends = np.array(heads[1:]) - np.arange(1, len(heads))
        return np.delete(flat, heads[:-1]), ends

    def _list_start(self) -> tuple[int | None, bytes]:
        """The declared length of the next list and its bracket, which is passed."""
        found = _COUNT.match(self.data, self._skip())
        if found is None:
            raise ValueError("expected a list of numbers")
        self.position = found.end()
        return None if found[1] is None else int(found[1]), found[2] or found[3]

    def _ascii_until(self, end: bytes, kind: str) -> np.ndarray:
        """The numbers up to the next match of a regular expression, which is passed."""
        found = re.compile(end).search(self.data, self.position)
        if found is None:
            raise ValueError("it ends within a list")
        text, self.position = self.data[self.position : found.end()], found.end()
        return _parse_ascii(text, kind)

    def _entries(self, scope: Dictionary, end: bytes) -> Dictionary:
        self._expansion.add(depth=1)
        while (keyword := self._next(end == b"")) != end:
            if keyword == b";":
                continue
            text = keyword.decode("latin-1")
            if text.startswith("#"):
                self._directive(text, scope)
            elif text.startswith("$"):
                found = scope.resolve(text[1:].strip("{}"))
                if isinstance(found, Dictionary):
                    self._expansion.add(words=len(found) + len(found.patterns))
                    scope.update(found)
                    scope.patterns += found.patterns
            else:
                self._entry(scope, text)
        self._expansion.depth -= 1
        return scope

    def _entry(self, scope: Dictionary, keyword: str) -> None:
        value: Any
        if self.data.startswith(b"{", self._skip()):
            self.position += 1
            value = self._entries(Dictionary(scope), b"}")
        else:
            value = self._value(scope, b";")
        if keyword.startswith('"'):
            scope.patterns.append((keyword.strip('"'), value))
        elif isinstance(value, Dictionary) and isinstance(old := scope.get(keyword), Dictionary):
            old.update(value)
        else:
            scope[keyword] = value

    def _value(self, scope: Dictionary, end: bytes) -> list[Any]:
        words: list[Any] = []
        self._expansion.add(depth=1)
        while (word := self._next()) != end:
            if typed := _LIST.fullmatch(word):
                kind = typed[1].decode()
                if kind not in _WIDTHS:
                    raise ValueError(f"a list of {kind}")
                dtype = self.label if kind == "label" else self.scalar
                words.append(self.numbers(dtype, _WIDTHS[kind]))
            elif word in (b"(", b"[", b"{"):
                closing = {b"(": b")", b"[": b"]", b"{": b"}"}[word]
                words.append(self._value(scope, closing))
            elif word.startswith(b"$"):
                found = scope.resolve(word.decode("latin-1")[1:].strip("{}"))
                more = found if isinstance(found, list) else [found]
                self._expansion.add(words=len(more))
                words += more
            elif word.startswith(b"#"):
                self._skip_code()
                words.append(UNKNOWN)
            else:
                words.append(word.decode("latin-1").strip('"'))
        self._expansion.depth -= 1
        return words

    def _directive(self, word: str, scope: Dictionary) -> None:
        if word in ("#include", "#includeIfPresent", "#sinclude"):
            name = self._next().decode().strip('"')
            path = self._find(name)
            if path is not None:
                self._include(path, scope)
            elif word == "#include":
                raise ValueError(f"it includes {name!r}, which does not exist")
        elif word in ("#codeStream", "#calc", "#eval"):
            self._skip_code()
        else:  # such as '#includeEtc "..."', '#inputMode merge': skip the line
            self.position = max(self.position, self.data.find(b"\n", self.position))

    def _find(self, name: str) -> Path | None:
        """The included file of this name, which must be in the case."""
        # "$FOAM_CASE/constant/a" and "<constant>/a" start in the case.
        plain = re.sub(r"^(\$FOAM_CASE|<case>)/|[<>]", "", name)
        # Without "..", so that the path that is checked is the path that is read.
        paths = [
            Path(os.path.normpath(folder.absolute() / plain))
            for folder in (self.path.parent, self.path.parent.parent, self.case)
        ]
        try:
            found = [path for path in paths if path.is_file()]
        except OSError as error:  # such as a name that is too long
            raise ValueError(f"it includes {name[:80]!r}: {error.strerror}") from error
        inside = [path for path in found if path.is_relative_to(os.path.normpath(self.case))]
        if found and not inside:
            raise ValueError(
                f"it includes {name!r}, which is outside the case; copy it into the case"
            )
        return inside[0] if inside else None

    def _include(self, path: Path, scope: Dictionary) -> None:
        expansion = self._expansion
        expansion.files += 1
        if path in expansion.open or expansion.files > _MOST_FILES:
            raise ValueError(f"it includes {path.name!r} again, or more than {_MOST_FILES} files")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"it includes {path.name!r}: {error.strerror}") from error
        expansion.open.append(path)
        Parser(data, path, case=self.case, expansion=expansion)._entries(scope, b"")
        expansion.open.pop()

    def _skip_code(self) -> None:
        """Skip the argument of a directive: a dictionary, code or a string."""
        if self.data.startswith(b"{", self._skip()):
            self.position += 1
            self._entries(Dictionary(), b"}")
        elif self.data.startswith((b"#{", b'"'), self.position):
            self._next()

    def _skip(self) -> int:
        """Skip white space and comments; return the position."""
        found = _SPACE.match(self.data, self.position)
        assert found is not None
        self.position = found.end()
        return self.position

    def _next(self, may_end: bool = False) -> bytes:
        """The next word, string (with quotes) or bracket; empty at the end of the file."""
        found = _TOKEN.match(self.data, self._skip())
        if found is None:
            if may_end and self.position >= len(self.data):
                return b""
            raise ValueError("it ends too early")
        self.position = found.end()
        return found[0]

    def _expect(self, mark: bytes) -> None:
        word = self._next()
        if word != mark:
            raise ValueError(f"expected {mark.decode()!r}, found {word[:20]!r}")


def _parse_ascii(text: bytes, kind: str) -> np.ndarray:
    return parse_numbers(text.translate(_WITHOUT_BRACKETS), kind)


def _shaped(values: np.ndarray, count: int | None, width: int) -> np.ndarray:
    if count is not None and len(values) != count * width:
        raise ValueError(f"{len(values)} numbers where {count * width} were announced")
    return values if width == 1 else values.reshape(-1, width)
