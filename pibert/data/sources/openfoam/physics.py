"""The physics of a case, from its dictionaries: viscosity, steady solvers, forces, phases.

They decide which equations hold. What is not plane incompressible flow without forces is recorded
as the reason for which no family of equations is assumed (``local["family"]``).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pibert.data.sources.openfoam.dictionary import Dictionary
from pibert.data.sources.openfoam.storage import Storage
from pibert.data.sources.openfoam.topology import first_word

_PSEUDO_TIME = ("steadyState", "localEuler", "CoEuler", "SLTS")
"""Time schemes whose times are not physical: iterations, or a time step of its own per cell."""
_SOURCES = ("fvOptions", "fvModels")
_OFF = ("no", "off", "false", "n", "f", "none")


class CaseDictionaries:
    """The dictionaries of a case. One that cannot be read counts as empty, with a note."""

    def __init__(self, case: Path, remarks: list[str]) -> None:
        self.remarks = remarks
        self._storage = Storage(case, (case,))
        self._found: dict[str, Mapping[str, Any]] = {}

    def read(self, *names: str) -> Mapping[str, Any]:
        """The first of some dictionaries that the case has; empty if it has none."""
        for name in names:
            if name not in self._found and self._storage.has(name):
                self._found[name] = self._entries(name)
            if name in self._found:
                return self._found[name]
        return {}

    def _entries(self, name: str) -> Mapping[str, Any]:
        try:
            return self._storage.read(name)[0].entries()
        except ValueError as error:
            self.remarks.append(f"{name} was not read: {error}")
            return {}


def case_facts(stated: CaseDictionaries, *, is_wedge: bool = False) -> dict[str, Any]:
    """Viscosity, and why no family is assumed, as ``Series.facts``.

    The viscosity is also a parameter, which tells cases apart when they are joined.
    """
    facts: dict[str, Any] = {}
    if (viscosity := _viscosity(stated)) is not None:
        facts |= {"viscosity": viscosity, "parameters": {"viscosity": viscosity}}
    if (scheme := pseudo_time_scheme(stated)) is not None:
        stated.remarks.append(
            f"the time scheme is {scheme}: times count iterations of the solver and are not "
            "seconds; frames on the way to a steady flow do not show how it changes in time"
        )
    reasons = [*(["the flow is axisymmetric (wedge)"] if is_wedge else []), *_reasons(stated)]
    if reasons:
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
    if _is_nonzero(stated.read("constant/g").get("value")):
        yield "gravity acts (constant/g)"
    for name in _SOURCES:
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


def _is_nonzero(value: Any) -> bool:
    numbers = value[0] if isinstance(value, list) and value else []
    try:
        return any(float(number) != 0 for number in numbers)
    except (TypeError, ValueError):
        return True


def _stress_model(stated: CaseDictionaries) -> str | None:
    """The model of a fluid whose stress is not that of a constant viscosity."""
    fluid = stated.read("constant/transportProperties", "constant/physicalProperties")
    model = first_word(fluid, "transportModel") or first_word(fluid, "viscosityModel")
    if model not in ("", "Newtonian", "constant"):
        return model
    laminar = _turbulence(stated).get("laminar")
    if isinstance(laminar, Dictionary):
        model = first_word(laminar, "laminarModel") or first_word(laminar, "model")
    return model if model not in ("", "Newtonian", "constant", "Stokes") else None


def _turbulence(stated: CaseDictionaries) -> Mapping[str, Any]:
    return stated.read("constant/turbulenceProperties", "constant/momentumTransport")


def _viscosity(stated: CaseDictionaries) -> float | None:
    """The kinematic viscosity of a Newtonian fluid in laminar flow; None in other cases."""
    fluid = stated.read("constant/transportProperties", "constant/physicalProperties")
    if (model := _stress_model(stated)) is not None:
        stated.remarks.append(f"the viscosity is not set, as the fluid is not Newtonian ({model})")
        return None
    if "nu" not in fluid:
        return None
    turbulence = first_word(_turbulence(stated), "simulationType")
    if turbulence not in ("", "laminar"):
        stated.remarks.append(
            f"the viscosity is not set, as the case has a turbulence model ({turbulence})"
        )
        return None
    try:
        value = float(fluid["nu"][-1])
    except (TypeError, ValueError, LookupError):
        value = 0.0
    if value > 0:
        return value
    stated.remarks.append(
        "the viscosity is not set, as nu is not given as a positive number; state it with "
        "--parameter viscosity=NUMBER"
    )
    return None
