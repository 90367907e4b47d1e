"""OpenFOAM's file format: keywords and values, lists, nested dictionaries, macros and includes.

``$name`` refers to an entry of the enclosing dictionaries; ``#include`` inserts another file. Lists
of numbers become arrays, from ASCII or binary. Code (``#calc``, ``#codeStream``) is not run: such a
value is ``UNKNOWN``.
"""

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np

UNKNOWN = "#unknown"
"""Value of an entry that only OpenFOAM can evaluate."""

_SPACE = re.compile(rb"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(
    rb'#\{.*?#\}|"(?:[^"\\]|\\.)*"|[{}()\[\];]|\$\{[^}]*\}|[^\s{}()\[\];"]+', re.DOTALL
)
_LIST = re.compile(rb"List<(\w+)>")
_COUNT = re.compile(rb"\s*(\d+)\s*([({])|\s*([({])")
_WIDTHS = {"scalar": 1, "vector": 3, "symmTensor": 6, "tensor": 9, "label": 1}
_WITHOUT_BRACKETS = bytes.maketrans(b"(){}", b"    ")


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
            with contextlib.suppress(re.error):
                if re.fullmatch(pattern, keywords[0]):
                    return value
        return None

    def resolve(self, name: str) -> Any:
        """The value of a macro, from this dictionary or an enclosing one."""
        scope: Dictionary | None = self
        if name.startswith(":"):
            while scope is not None and scope.parent is not None:
                scope = scope.parent
        name = name.lstrip(":.")
        first, _, rest = name.partition(".")
        while scope is not None:
            if name in scope:
                return scope[name]
            if rest and isinstance(inner := scope.get(first), Dictionary):
                return inner.resolve(rest)
            scope = scope.parent
        return [UNKNOWN]


class Parser:
    """Parses one file.

    Args:
        data: Its bytes.
        path: Its path, for the files that it includes.
        head: The header (``FoamFile``) for a block of a file that has none.
    """

    def __init__(self, data: bytes, path: Path, head: Dictionary | None = None) -> None:
        self.data, self.path, self.place = data, path, 0
        self.head = head or Dictionary()
        self._skip()
        if data.startswith(b"FoamFile", self.place):
            self.place += len(b"FoamFile")
            self._expect(b"{")
            self.head = self._entries(Dictionary(), b"}")

    @property
    def is_binary(self) -> bool:
        return self.head.get("format") == ["binary"]

    @property
    def label(self) -> str:
        return "<i8" if "label=64" in self._arch else "<i4"

    @property
    def scalar(self) -> str:
        return "<f4" if "scalar=32" in self._arch else "<f8"

    @property
    def _arch(self) -> str:
        return str((self.head.get("arch") or [""])[0])

    def entries(self) -> Dictionary:
        """The rest of the file as a dictionary."""
        try:
            return self._entries(Dictionary(), b"")
        except RecursionError:
            raise ValueError("it is nested too deeply, or includes itself") from None

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

    def numbers(self, dtype: str, width: int = 1) -> np.ndarray:
        """The next list of numbers, (n,) or (n, width)."""
        found = _COUNT.match(self.data, self._skip())
        if found is None:
            raise ValueError("expected a list of numbers")
        self.place = found.end()
        kind = "f" if "f" in dtype else "i"
        count = None if found[1] is None else int(found[1])
        if (found[2] or found[3]) == b"{":
            one = _shaped(_parse_numbers(self._until(b"}"), kind), 1, width)
            return np.broadcast_to(one, (count or 0, *one.shape[1:]))
        if count == 0:
            self._expect(b")")
            return np.empty((0, width) if width > 1 else 0, kind + "8")
        if self.is_binary and count is not None:
            size = count * width * np.dtype(dtype).itemsize
            end = self.place + size
            if self.data[end : end + 1] != b")":
                raise ValueError(f"it ends within a list of {count} values")
            values = np.frombuffer(self.data, dtype, count * width, self.place)
            self.place = end + 1
            return _shaped(values.astype(kind + "8"), count, width)
        text = self._until(re.compile(rb"\)\s*\)") if width > 1 else b")")
        return _shaped(_parse_numbers(text, kind), count, width)

    def counted_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """A list of lists, such as ASCII faces: all their numbers, and where each list ends."""
        found = _COUNT.match(self.data, self._skip())
        if found is None or found[1] is None:
            raise ValueError("expected a list of lists")
        self.place = found.end()
        flat = _parse_numbers(self.data[self.place : self.data.rfind(b")")], "i")
        if int(found[1]) > len(flat):
            raise ValueError(f"{len(flat)} numbers where {found[1].decode()} lists were announced")
        heads = [0]
        for _ in range(int(found[1])):
            heads.append(heads[-1] + 1 + int(flat[heads[-1]]))
        if heads[-1] != len(flat):
            raise ValueError(f"{len(flat)} numbers where {heads[-1]} were announced")
        ends = np.array(heads[1:]) - np.arange(1, len(heads))
        return np.delete(flat, heads[:-1]), ends

    def _entries(self, scope: Dictionary, end: bytes) -> Dictionary:
        while (keyword := self._next(end == b"")) != end:
            if keyword == b";":
                continue
            text = keyword.decode("latin-1")
            if text.startswith("#"):
                self._directive(text, scope)
            elif text.startswith("$"):
                self._merge(scope, scope.resolve(_macro(text)))
            else:
                self._entry(scope, text)
        return scope

    def _entry(self, scope: Dictionary, keyword: str) -> None:
        value: Any
        if self.data.startswith(b"{", self._skip()):
            self.place += 1
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
        while (word := self._next()) != end:
            typed = _LIST.fullmatch(word)
            if typed:
                words.append(self._typed(typed[1].decode()))
            elif word in (b"(", b"[", b"{"):
                closing = {b"(": b")", b"[": b"]", b"{": b"}"}[word]
                words.append(self._value(scope, closing))
            elif word.startswith(b"$"):
                found = scope.resolve(_macro(word.decode("latin-1")))
                words += found if isinstance(found, list) else [found]
            elif word.startswith(b"#"):
                self._skip_code()
                words.append(UNKNOWN)
            else:
                words.append(word.decode("latin-1").strip('"'))
        return words

    def _typed(self, kind: str) -> Any:
        if kind not in _WIDTHS:
            raise ValueError(f"a list of {kind}")
        return self.numbers(self.label if kind == "label" else self.scalar, _WIDTHS[kind])

    def _directive(self, word: str, scope: Dictionary) -> None:
        if word in ("#include", "#includeIfPresent", "#sinclude"):
            name = self._next().decode().strip('"')
            # "$FOAM_CASE/constant/a" and "<constant>/a" start in the case.
            plain = re.sub(r"^(\$FOAM_CASE|<case>)/|[<>]", "", name)
            for path in (self.path.parent / plain, self.path.parent.parent / plain):
                if path.is_file():
                    included = Parser(path.read_bytes(), path)
                    included._entries(scope, b"")
                    return
            if word == "#include":
                raise ValueError(f"it includes {name!r}, which is not there")
        elif word in ("#codeStream", "#calc", "#eval"):
            self._skip_code()
        else:  # such as '#includeEtc "..."', '#inputMode merge': skip the line
            self.place = max(self.place, self.data.find(b"\n", self.place))

    def _merge(self, scope: Dictionary, found: Any) -> None:
        if isinstance(found, Dictionary):
            scope.update(found)
            scope.patterns += found.patterns

    def _skip_code(self) -> None:
        """Skip the argument of a directive: a dictionary, code or a string."""
        if self.data.startswith(b"{", self._skip()):
            self.place += 1
            self._entries(Dictionary(), b"}")
        elif self.data.startswith((b"#{", b'"'), self.place):
            self._next()

    def _skip(self) -> int:
        """Skip white space and comments."""
        found = _SPACE.match(self.data, self.place)
        assert found is not None
        self.place = found.end()
        return self.place

    def _next(self, may_end: bool = False) -> bytes:
        """The next word, string (with quotes) or bracket; empty at the end of the file."""
        found = _TOKEN.match(self.data, self._skip())
        if found is None:
            if may_end and self.place >= len(self.data):
                return b""
            raise ValueError("it ends too early")
        self.place = found.end()
        return found[0]

    def _expect(self, mark: bytes) -> None:
        word = self._next()
        if word != mark:
            raise ValueError(f"expected {mark.decode()!r}, found {word[:20]!r}")

    def _until(self, end: "bytes | re.Pattern[bytes]") -> bytes:
        found = (end if isinstance(end, re.Pattern) else re.compile(re.escape(end))).search(
            self.data, self.place
        )
        if found is None:
            raise ValueError("it ends within a list")
        text = self.data[self.place : found.end()]
        self.place = found.end()
        return text


def _macro(word: str) -> str:
    return word[1:].strip("{}")


def _parse_numbers(text: bytes, kind: str) -> np.ndarray:
    plain = text.translate(_WITHOUT_BRACKETS)
    return np.fromstring(plain.decode("latin-1"), kind + "8", sep=" ")


def _shaped(values: np.ndarray, count: int | None, width: int) -> np.ndarray:
    if count is not None and len(values) != count * width:
        raise ValueError(f"{len(values)} numbers where {count * width} were announced")
    return values if width == 1 else values.reshape(-1, width)
