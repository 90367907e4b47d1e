"""The fields and the physics of a case, from its files.

Fields have cell values, and values on the edges of the boundary; their dimensions are powers of kg,
m, s, K, mol, A, cd. Dictionaries state viscosity, steady solvers, forces and phases. If they show
that the flow is not plane and incompressible without forces, no family of equations is assumed, and
``local["family"]`` records the reason.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.openfoam.dictionary import UNKNOWN, Dictionary
from pibert.data.readers.openfoam.mesh import Patch, PolyMesh, first_word
from pibert.data.readers.openfoam.storage import Storage, parsing
from pibert.data.readers.recordings import SourceError

SLIP = ("slip", "symmetry", "symmetryPlane", "basicSymmetry")
"""Conditions, and types of patches, that remove only the normal velocity."""
_WIDTHS = {"volScalarField": 1, "volVectorField": 3}
# By the powers of kg, m, s and K.
_UNITS: dict[tuple[float, ...], str] = {
    **{(0, 0, 0, 0): "1", (0, 1, 0, 0): "m", (0, 0, 0, 1): "K", (1, -3, 0, 0): "kg/m3"},
    **{(0, 1, -1, 0): "m/s", (0, 0, -1, 0): "1/s", (0, 2, -1, 0): "m2/s"},
    **{(0, 2, -2, 0): "m2/s2", (1, -1, -2, 0): "Pa"},
}
_NAMED_UNITS = {
    "dimensionless": "1",
    "velocity": "m/s",
    "kinematicPressure": "m2/s2",
    "pressure": "Pa",
    "density": "kg/m3",
    "temperature": "K",
}
"""Names that newer versions write instead of powers."""


class NotEvaluated(SourceError):
    """A field whose values only OpenFOAM can compute (``#calc``, ``#codeStream``)."""


@dataclass(frozen=True, eq=False)
class FoamField:
    """One field of all processors of a case."""

    path: Path
    """The first processor's file."""
    width: int
    """Components: 1 or 3."""
    unit: str | None
    pieces: tuple[Dictionary, ...]
    """The file of every processor."""

    def cells(self, counts: tuple[int, ...]) -> np.ndarray:
        """(n, width) cell values, given the number of cells of every processor."""
        arrays = []
        for piece, count in zip(self.pieces, counts, strict=True):
            values = self._values(piece.get("internalField"), count)
            if values is None:
                raise NotEvaluated(
                    f"{self.path}: internalField is not given as numbers; OpenFOAM computes it"
                )
            arrays.append(values)
        return np.concatenate(arrays)

    def condition(self, patch: Patch) -> Dictionary:
        """The boundary condition on a patch; empty if none is stated."""
        boundary = self.pieces[patch.processor].get("boundaryField")
        with parsing(self.path):
            found = boundary.find(*patch.keys) if isinstance(boundary, Dictionary) else None
        return found if isinstance(found, Dictionary) else Dictionary()

    def edges(self, mesh: PolyMesh, cells: np.ndarray) -> np.ndarray:
        """(f, width) values on the mesh's edges."""
        found = [self.on_patch(patch, mesh, cells) for patch in mesh.valued]
        return np.concatenate([np.empty((0, self.width)), *found])

    def on_patch(self, patch: Patch, mesh: PolyMesh, cells: np.ndarray) -> np.ndarray:
        """(k, width) values on a patch: as stated, else of the cells beside it."""
        condition, count = self.condition(patch), len(patch.edges)
        kind, beside = first_word(condition, "type"), cells[patch.owners]
        if kind == "noSlip":
            return np.zeros((count, self.width))
        if kind in SLIP or patch.kind in SLIP:
            if self.width == 3:
                outward = np.zeros((count, 3))
                outward[:, list(mesh.axes)] = mesh.outward(patch)
                beside = beside - (beside * outward).sum(1, keepdims=True) * outward
            return beside
        stated = self._values(condition.get("value"), count)
        return beside if stated is None else stated

    def _values(self, entry: object, count: int) -> np.ndarray | None:
        """(count, width) from ``uniform VALUE`` or ``nonuniform LIST``; None if not stated."""
        if not isinstance(entry, list) or len(entry) < 2:
            return None
        with parsing(self.path):
            values = next((word for word in entry if isinstance(word, np.ndarray)), None)
            if values is not None:
                if values.size != count * self.width:
                    raise ValueError(
                        f"found {values.size} numbers, expected {count} x {self.width}"
                    )
                return values.reshape(count, self.width)
            words = entry[1] if isinstance(entry[1], list) else entry[1:2]
            if entry[0] != "uniform" or UNKNOWN in words:
                return None
            if not all(isinstance(word, str) for word in words) or len(words) != self.width:
                raise ValueError(f"expected a uniform value of {self.width} numbers")
            numbers = np.array([float(word) for word in words])
            return np.broadcast_to(numbers, (count, self.width))


def read_field(storage: Storage, name: str) -> FoamField:
    """Read a scalar or vector field of the cells, named by time folder and file."""
    path = storage.folders[0] / name
    with parsing(path):
        parsers = storage.read(name)
        kind = first_word(parsers[0].head, "class")
        if kind not in _WIDTHS:
            raise ValueError(f"its class is {kind!r}, expected one of {', '.join(_WIDTHS)}")
        pieces = tuple(parser.entries() for parser in parsers)
        if any("internalField" not in piece for piece in pieces):
            raise ValueError("internalField is missing")
        return FoamField(path, _WIDTHS[kind], _unit(pieces[0]), pieces)


def is_field(storage: Storage, name: str) -> bool:
    """Whether a file holds a scalar or vector field of the cells."""
    return first_word(storage.read(name)[0].head, "class") in _WIDTHS


def _unit(stated: Dictionary) -> str | None:
    listed = stated.get("dimensions")
    words = listed[0] if isinstance(listed, list) and listed else []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    if len(words) == 1:
        return _NAMED_UNITS.get(words[0])
    try:
        return _UNITS.get(tuple(float(word) for word in words[:4]))
    except ValueError:
        return None


_PSEUDO_TIME = ("steadyState", "localEuler", "CoEuler", "SLTS")
"""Time schemes without physical time: iterations, or a different time step in each cell."""
_FLUID = ("constant/transportProperties", "constant/physicalProperties")
_TURBULENCE = ("constant/turbulenceProperties", "constant/momentumTransport")
_OFF = ("no", "off", "false", "n", "f", "none")


class CaseDictionaries:
    """The dictionaries of a case. One that cannot be read counts as empty, with a note."""

    def __init__(self, case: Path, notes: list[str]) -> None:
        self.notes = notes
        self._storage = Storage(case, (case,))
        self._found: dict[str, Mapping[str, Any]] = {}

    def read(self, *names: str) -> Mapping[str, Any]:
        """The first of some dictionaries that the case has; empty if it has none."""
        for name in names:
            if name not in self._found and self._storage.has(name):
                self._found[name] = {}
                try:
                    self._found[name] = self._storage.read(name)[0].entries()
                except ValueError as error:
                    self.notes.append(f"{name} was not read: {error}")
            if name in self._found:
                return self._found[name]
        return {}


def case_facts(stated: CaseDictionaries, *, is_wedge: bool = False) -> dict[str, Any]:
    """Return viscosity, and why no family is assumed, as ``Series.facts``.

    The viscosity is also a parameter, which distinguishes cases when they are joined.
    """
    facts: dict[str, Any] = {}
    if (viscosity := _viscosity(stated)) is not None:
        facts |= {"viscosity": viscosity, "parameters": {"viscosity": viscosity}}
    if (scheme := pseudo_time_scheme(stated)) is not None:
        stated.notes.append(
            f"the time scheme is {scheme}: times count iterations of the solver and are not "
            "seconds; the frames converge to a steady flow and are not its evolution in time"
        )
    if reasons := [*["the flow is axisymmetric (wedge)"] * is_wedge, *_reasons(stated)]:
        facts["local"] = {"family": "; ".join(reasons)}
    return facts


def pseudo_time_scheme(stated: CaseDictionaries) -> str | None:
    """A time scheme without physical time, if the case uses one."""
    schemes = stated.read("system/fvSchemes").get("ddtSchemes")
    default = schemes.get("default") if isinstance(schemes, Dictionary) else None
    words = default if isinstance(default, list) else []
    return next((word for word in words if word in _PSEUDO_TIME), None)


def _reasons(stated: CaseDictionaries) -> Iterator[str]:
    """Why the equations of incompressible flow without forces do not describe a case."""
    if (scheme := pseudo_time_scheme(stated)) is not None:
        yield f"the times of the case are not physical ({scheme})"
    if stated.read("constant/thermophysicalProperties"):
        yield "the case has a thermophysical model"
    fluids = [stated.read(f"constant/{name}Properties") for name in ("transport", "phase")]
    if any("phases" in fluid for fluid in fluids):
        yield "the case has several phases"
    if _acts(stated.read("constant/g").get("value")):
        yield "gravity acts (constant/g)"
    for name in ("fvOptions", "fvModels"):
        for folder in ("constant", "system"):
            if active := _active(stated.read(f"{folder}/{name}")):
                yield f"the case has source terms ({folder}/{name}: {', '.join(active)})"
    if active := _active(stated.read("constant/MRFProperties")):
        yield f"the case has rotating zones ({', '.join(active)})"
    if (model := _stress_model(stated)) is not None:
        yield f"the fluid is not Newtonian ({model})"


def _active(stated: Mapping[str, Any]) -> list[str]:
    """Names of the sections that are not switched off."""
    return [
        name
        for name, section in stated.items()
        if isinstance(section, Dictionary)
        and name != "FoamFile"
        and first_word(section, "active").lower() not in _OFF
    ]


def _acts(value: Any) -> bool:
    """Whether a vector is not zero, or not given as numbers."""
    numbers = value[0] if isinstance(value, list) and value else []
    try:
        return any(float(number) != 0 for number in numbers)
    except (TypeError, ValueError):
        return True


def _stress_model(stated: CaseDictionaries) -> str | None:
    """The model of a fluid whose stress is not that of a constant viscosity."""
    laminar = stated.read(*_TURBULENCE).get("laminar")
    laminar = laminar if isinstance(laminar, Dictionary) else {}
    for section, keys in (
        (stated.read(*_FLUID), ("transportModel", "viscosityModel")),
        (laminar, ("laminarModel", "model")),
    ):
        model = next(filter(None, (first_word(section, key) for key in keys)), "Newtonian")
        if model not in ("Newtonian", "constant", "Stokes"):
            return model
    return None


def _viscosity(stated: CaseDictionaries) -> float | None:
    """The kinematic viscosity of a Newtonian fluid in laminar flow; None in other cases."""
    fluid = stated.read(*_FLUID)
    turbulence = first_word(stated.read(*_TURBULENCE), "simulationType")
    if (model := _stress_model(stated)) is not None:
        reason = f"the fluid is not Newtonian ({model})"
    elif "nu" not in fluid:
        return None
    elif turbulence not in ("", "laminar"):
        reason = f"the case has a turbulence model ({turbulence})"
    else:
        with contextlib.suppress(TypeError, ValueError, LookupError):
            if (value := float(fluid["nu"][-1])) > 0:
                return value
        reason = "nu is not a positive number; state it with --parameter viscosity=NUMBER"
    stated.notes.append(f"the viscosity is not set, as {reason}")
    return None
