"""In which order the axes of an array are: words such as ``tcyx`` (``lazy`` lists the letters).

The lengths of the coordinates decide; where they leave a choice, the order that is usual in such
files, with the channel axis as a short one. What the user says goes before all of it.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

MOST_CHANNELS = 8
"""An axis without a name is taken for channels up to this length."""


@dataclass(frozen=True, kw_only=True)
class AxisOrder:
    """What is known about the axes of all arrays of a file."""

    usual: str
    """All letters in the usual order."""
    stated: str | None
    """What the user says."""
    lengths: Mapping[str, int]
    """Of the coordinates that are vectors."""
    mesh: tuple[int, ...] | None
    """Shape of the coordinates where they are meshes."""

    def __post_init__(self) -> None:
        letters = set(self.stated or "yx")
        if not {"y", "x"} <= letters <= set("btcyx") or len(letters) != len(self.stated or "yx"):
            raise ValueError(
                "--axes must be a word of the letters b, t, c, y, x such as tcyx, with y and x, "
                f"found {self.stated!r}"
            )

    def find(
        self, shape: tuple[int, ...], *, most: int = MOST_CHANNELS, channels_first: bool = False
    ) -> str:
        """The order of an array's axes; points lie along x; empty where none fits.

        Args:
            shape: Of the array.
            most: How long a channel axis may be.
            channels_first: Whether one axis besides the plane is rather of channels than of time.
        """
        if self.stated is not None:
            return self._stated(shape)
        return self._likeliest(shape, "yx", self.lengths, most, channels_first) or (
            self._likeliest(shape, "x", {**self.lengths, "y": 0}, most, channels_first)
            if self.lengths.get("x") == self.lengths.get("y") is not None
            else ""
        )

    def explain(self, shape: tuple[int, ...]) -> str:
        """Why no order was found."""
        known = ", ".join(f"{n} along {letter}" for letter, n in self.lengths.items()) or "none"
        if self.stated is not None:
            return f"the axes {self.stated!r} do not fit shape {shape} (coordinates: {known})"
        return f"the order of the axes is not clear from shape {shape} (coordinates: {known})"

    def _stated(self, shape: tuple[int, ...]) -> str:
        word = self.stated or ""
        # A user states the fullest order; arrays without channels or of one frame have less.
        for axes in (word, word.replace("c", ""), word.replace("t", "")):
            if len(axes) == len(shape):
                size = dict(zip(axes, shape, strict=True))
                if all(size.get(letter, n) == n for letter, n in self.lengths.items()):
                    return axes
        return ""

    def _likeliest(
        self,
        shape: tuple[int, ...],
        plane: str,
        lengths: Mapping[str, int],
        most: int,
        channels_first: bool,
    ) -> str:
        more = {0: [""], 1: ["t", "c"], 2: ["tc"], 3: ["btc"]}.get(len(shape) - len(plane), [])
        if channels_first and min(shape, default=0) <= 4:
            more = more[::-1]
        found = []
        for rank, extra in enumerate(more):
            for axes in map("".join, itertools.permutations(extra + plane)):
                size = dict(zip(axes, shape, strict=True))
                fits = all(size.get(letter, n) == n for letter, n in lengths.items())
                if self.mesh is not None:
                    # Both axes of a mesh belong to the fields, in the mesh's order.
                    fits &= (size["y"], size["x"]) == self.mesh and axes.find("y") < axes.find("x")
                if fits and size.get("c", 1) <= most:
                    odd = size.get("c", 1) > min(size[letter] for letter in plane)
                    found.append((odd, rank, self._inversions(axes), axes))
        return min(found)[-1] if found else ""

    def _inversions(self, axes: str) -> int:
        places = [self.usual.index(letter) for letter in axes]
        return sum(a > b for a, b in itertools.combinations(places, 2))
