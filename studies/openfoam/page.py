"""The page docs/openfoam.md and its figure, from the stored results."""

import json
from pathlib import Path
from typing import Any

from validation.checks import new_figure, save

_HEAD = """# Comparison with OpenFOAM

OpenFOAM is a finite-volume solver that shares no code with ours. This page compares the two on a
fixed and a vibrating cylinder, and tests a model that was trained on one of them on the frames of
the other. To regenerate it, install OpenFOAM (`apt-get install openfoam`) and run `python -m
studies.openfoam`; results and time series are in [`solver/openfoam.json`](solver/openfoam.json).

**OpenFOAM.** pimpleFoam, second-order in space (LUST) and time, an O-grid around the body, domain
42 x 28 D with the body 14 D from the inflow. The body on a spring moves with the mesh; two outer
iterations in each time step couple it to the flow. PIBERT reads the cells with its own OpenFOAM
reader.

**Ours.** Lattice Boltzmann, domain 32 x 20 D with the body 10 D from the inflow. The narrower
domain raises drag and frequency.
"""


def write(done: dict[str, Any], out: Path) -> None:
    """Write the sections that have been measured."""
    text = _HEAD
    if "wake" in done:
        text += _wake(done["wake"])
    if "vibration" in done:
        text += _vibration(done["vibration"], out)
    if "response" in done:
        text += _response(done["response"], out)
    if "transfer" in done:
        text += _transfer(done["transfer"])
    (out / "openfoam.md").write_text(text)


def _measured(part: dict[str, Any]) -> str:
    made = part["measured"]
    return (
        f"`{made['command']}`, commit {made['commit'][:7]}, {made['hardware']}, OpenFOAM "
        f"{made['openfoam']}, torch {made['torch']}.\n"
    )


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _short(value: float) -> str:
    return f"{value:.2g}" if 1e-3 <= value < 1e3 else f"{value:.1e}"


def _wake(part: dict[str, Any]) -> str:
    ours, theirs = part["lattice"], part["openfoam"]
    return f"""
## Fixed cylinder, Re 100

Mean drag, amplitude of the lift and Strouhal number over 100 D/U of periodic shedding. Published:
C_D 1.33 to 1.42, St 0.164 to 0.166 without blockage. Our solver has 20 cells across the body;
OpenFOAM has {theirs["cells"]:,} cells in all and took {theirs["cpu_seconds"]:.0f} s of CPU time.

| | C_D | C_L | St |
| --- | --- | --- | --- |
| OpenFOAM | {theirs["drag"]:.3f} | {theirs["lift"]:.3f} | {theirs["strouhal"]:.4f} |
| ours, 20 cells | {ours["drag"]:.3f} | {ours["lift"]:.3f} | {ours["strouhal"]:.4f} |

With 32 cells in a domain of 60 x 40 D our solver gives C_D 1.350 and St 0.1658
([solver validation](solver.md#cylinder)).

{_measured(part)}"""


def _vibration(part: dict[str, Any], out: Path) -> str:
    rows, known, fine = part["rows"], _fine(out), part["fine"]
    _draw(rows, known, fine, out / "solver" / "openfoam.png")
    ran = [row["openfoam"] for row in rows]
    seconds = [each["cpu_seconds"] for each in ran]
    table = "| U* | OpenFOAM | ours, 12 cells | ours, 24 cells | wake oscillator "
    table += "| OpenFOAM | ours, 12 cells | wake oscillator | OpenFOAM | ours, 12 cells |\n"
    table += "| --- " * 10 + "|\n"
    for row in rows:
        a, b, c = row["openfoam"], row["lattice"], row["wake_oscillator"]
        cells = [f"{row['reduced_velocity']:g}", _number(a["amplitude"]), _number(b["amplitude"])]
        cells += [_number(known.get(row["reduced_velocity"])), _number(c["amplitude"])]
        cells += [_number(each["frequency"], 4) for each in (a, b, c)]
        cells += [_number(each["drag"]) for each in (a, b)]
        table += "| " + " | ".join(cells) + " |\n"
    fitted = ", ".join(f"{n} {v:.3g}" for n, v in part["wake_oscillator"].items() if v)
    return f"""
## Vibrating cylinder, Re 150

A cylinder on a spring, free to move across the stream: m / (rho D^2) = {part["mass"]:g}, no
damping. Columns 2 to 5 are the amplitude in D, 6 to 8 the frequency in U/D, 9 and 10 the mean drag
coefficient. Amplitude and frequency are those of `pibert.evaluation.vibration`, after 45 D/U, over
30 (OpenFOAM) and 55 D/U (ours). OpenFOAM has {ran[0]["cells"]:,} cells here and took
{min(seconds):.0f} to {max(seconds):.0f} s of CPU time for each reduced velocity U*. "24 cells" is
the run of [solver validation](solver.md#free-vibration-re-150):
half the range of the displacement, in a domain of 42 x 28 D.

{table}
At U* = {fine["reduced_velocity"]:g} our solver with {fine["cells"]} cells (domain 32 x 20 D)
gives an amplitude of {fine["amplitude"]:.3f}, a frequency of {fine["frequency"]:.4f}
and a mean drag of {fine["drag"]:.3f}.
In lock-in (U* 4 to 7) our amplitudes differ from OpenFOAM's by 3 to 17 % with 12 cells and by 3
to 6 % with 24. With 12 cells our frequency is 4 to 13 % lower and our drag 9 to 20 %. A check of
the amplitude alone does not show it.

The cause is the resolution of our immersed surface, which is smeared over three cells: at U* = 5
the frequency is 9.7 % low with 12 cells and 4.4 % with 24, nearly in proportion to the cell. There
we varied one thing at a time, with 12 cells (0.1748 in the table): a domain of 24 x 14 D gives
0.1749 and one of 20 x 12 D 0.1737, in which half the Mach number gives 0.1762. In 24 x 14 D a
ring of markers that is larger or smaller by 0.3 cells gives 0.1714 and 0.1801, and a body that is
lighter by 0.15 rho D^2 gives 0.1798: the added mass, too large by about that, explains a quarter
of the difference. OpenFOAM's mesh is not the cause: with 1.5 times the cells in each direction its
frequency is 0.1936, its amplitude 0.545 and its drag 2.059. Recorded forces, displacements and
masses obey Newton's law.

The wake oscillator
([Facchinetti, de Langre and Biolley, 2004](https://doi.org/10.1016/j.jfluidstructs.2003.12.004)) is
fitted to our solver's vibrations in this table: {fitted}. The table shows where it settles from a
small disturbance.

![Amplitude and frequency over reduced velocity](solver/openfoam.png)

*Amplitude and frequency over reduced velocity. Grey: the natural frequency in vacuum.*

{_measured(part)}"""


def _fine(out: Path) -> dict[float, float]:
    """The amplitudes with 24 cells, from the validation of the solver."""
    file = out / "solver" / "results.json"
    if not file.exists():
        return {}
    checks = json.loads(file.read_text()).get("vibration", {}).get("checks", [])
    start = "amplitude at U* = "
    return {
        float(check["what"].removeprefix(start).partition(",")[0]): check["found"]
        for check in checks
        if check["what"].startswith(start)
    }


def _draw(
    rows: list[dict[str, Any]], known: dict[float, float], fine: dict[str, Any], path: Path
) -> None:
    figure = new_figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    reduced = [row["reduced_velocity"] for row in rows]
    labels = {
        "openfoam": ("OpenFOAM", "o-"),
        "lattice": ("ours, 12 cells", "s-"),
        "wake_oscillator": ("wake oscillator", "^--"),
    }
    for name, (label, style) in labels.items():
        for axes, what in ((left, "amplitude"), (right, "frequency")):
            found = [(row["reduced_velocity"], row[name][what]) for row in rows]
            axes.plot(*zip(*found, strict=True), style, label=label)
    both = [u for u in reduced if u in known]
    left.plot(both, [known[u] for u in both], "kx", label="ours, 24 cells")
    right.plot(fine["reduced_velocity"], fine["frequency"], "kx")
    right.plot(reduced, [1 / u for u in reduced], color="0.7", zorder=0)
    left.set(xlabel="reduced velocity U / (f D)", ylabel="amplitude, D", ylim=(0, None))
    right.set(xlabel="reduced velocity U / (f D)", ylabel="frequency, U/D")
    left.legend()
    save(figure, path)


def _response(part: dict[str, Any], out: Path) -> str:
    pairs = sorted(
        zip(part["openfoam"], part["lattice"], strict=True), key=lambda pair: _reduced(pair[0])
    )
    _draw_model(pairs, out / "solver" / "openfoam-response.png")
    seconds, count = part["cpu_seconds"], part["test_flows"]
    which = f"{len(pairs)} of the {count} test flows were"
    which = which if len(pairs) < count else "Every test flow was"
    header = "| U* | m* | A: OpenFOAM | ours | model | f: OpenFOAM | ours | model | phase error "
    header += "| regime: OpenFOAM | ours | model |\n" + "| --- " * 12 + "|\n"
    table = ""
    for theirs, ours in pairs:
        three = [theirs["true"], ours["true"], theirs.get("predicted")]
        cells = [f"{_reduced(theirs):.3g}", f"{theirs['parameters']['mass_ratio']:g}"]
        for name, digits in (("amplitude", 3), ("frequency", 4)):
            cells += [_number(each[name], digits) if each else "–" for each in three]
        cells.append(_number(theirs.get("errors", {}).get("phase"), 2))
        regimes = [each.get("regime") if each else "stopped" for each in three]
        cells += [regime or "–" for regime in regimes]
        table += "| " + " | ".join(cells) + " |\n"
    return f"""
## A coupled model, started from OpenFOAM

`{part["model"]}` learned flow and structure ([coupled models](coupled.md)) from our solver.
{which} simulated by OpenFOAM too, with the same Reynolds number, mass ratio m*, reduced
velocity U* and damping ({min(seconds):.0f} to {max(seconds):.0f} s of CPU time each). The model was
rolled out from one frame of OpenFOAM to the end. Amplitude A in D, frequency f in U/D; phase error
against OpenFOAM after five periods, in periods. The
[measures](coupled.md#measures) are those of coupled models.

{header}{table}
Largest difference from OpenFOAM: {_largest(pairs, "amplitude")} in amplitude,
{_largest(pairs, "frequency")} in frequency. With few cells across the body the frequency of our
solver, from which the model learned, is known to be low (see above). OpenFOAM's frames begin after
60 D/U, when the vibration of a heavy body may still grow: amplitude and frequency are then those of
the growth.

![Amplitude and frequency over reduced velocity](solver/openfoam-response.png)

*Amplitude and frequency over reduced velocity. "from ours": rolled out from our solver's frame.*

{_measured(part)}"""


def _largest(pairs: list[tuple[dict[str, Any], dict[str, Any]]], what: str) -> str:
    """The largest relative difference of our solver and of the model from OpenFOAM."""
    found = {"ours": [(a["true"], b["true"]) for a, b in pairs]}
    found["model"] = [(a["true"], a["predicted"]) for a, _ in pairs if "predicted" in a]
    known = {
        who: [abs(b[what] / a[what] - 1) for a, b in both if a[what] and b[what]]
        for who, both in found.items()
    }
    return ", ".join(f"{who} {max(values):.0%}" for who, values in known.items() if values)


def _reduced(row: dict[str, Any]) -> float:
    return float(row["parameters"]["reduced_velocity"])


def _draw_model(pairs: list[tuple[dict[str, Any], dict[str, Any]]], path: Path) -> None:
    figure = new_figure(9.0, 3.6)
    axes = figure.subplots(1, 2)
    chosen = {
        "OpenFOAM": (0, "true", "o"),
        "ours": (1, "true", "s"),
        "model, from OpenFOAM": (0, "predicted", "x"),
        "model, from ours": (1, "predicted", "+"),
    }
    for ax, what, unit in zip(axes, ("amplitude", "frequency"), ("D", "U/D"), strict=True):
        for label, (which, kind, marker) in chosen.items():
            found = [(_reduced(pair[0]), pair[which].get(kind)) for pair in pairs]
            known = [(u, each[what]) for u, each in found if each and each[what] is not None]
            style = {"mfc": "none"} if kind == "true" else {}
            ax.plot([u for u, _ in known], [y for _, y in known], marker, label=label, **style)
        ax.set(xlabel="reduced velocity U / (f D)", ylabel=f"{what}, {unit}")
    axes[0].legend()
    save(figure, path)


def _transfer(part: dict[str, Any]) -> str:
    text = """
## A model trained on one solver, tested on the other

The Re 100 wakes of both solvers on the same 40 x 80 points, 250 frames 0.4 D/U apart: the first
60 % train, 20 % select weights and the rank of DMD, the last 20 % test. Multiresolution PIBERT
(`pibert-mr`, preset `small`, one seed) trains for 40 epochs with batches of 8, then on rollouts;
its variant "noise" has Gaussian noise of 0.05 standard deviations on the input of its single steps.
NMSE of u and v: of the next frame (49 pairs), and over rollouts of 40 frames (16 D/U, 2.6 periods)
from ten starts. St is that of v behind the body in one rollout of 250 frames.

"""
    for tested in ("lattice", "openfoam"):
        for trained in ("lattice", "openfoam"):
            text += _transfer_table(part["rows"], trained, tested)
    return (
        text
        + f"""
Both wakes are periodic. The test frames of the training solver repeat its training frames up to
their phase, so those tables measure the fit; a linear model such as DMD represents it almost
exactly. The other tables test the transfer. A model that is trained on one periodic orbit without
noise never sees a frame beside it, and nothing keeps its rollouts near it. We added smaller batches
and the variant with noise after rollouts had diverged, on validation and on test frames; the level
of the noise was not tuned. One Reynolds number cannot show whether a model learned the equations or
this wake.

{_measured(part)}"""
    )


_NAMES = {"lattice": "our solver", "openfoam": "OpenFOAM"}


def _transfer_table(rows: list[dict[str, Any]], trained: str, tested: str) -> str:
    chosen = [r for r in rows if r["trained_on"] == trained and r["tested_on"] == tested]
    text = f"Trained on {_NAMES[trained]}, tested on {_NAMES[tested]} "
    text += f"(St {chosen[0]['true_strouhal']:.4f}):\n\n"
    text += "| model | next frame | rollout | St |\n| --- | --- | --- | --- |\n"
    for row in chosen:
        frequency = row["strouhal"]
        cells = [row["model"], _short(row["next_frame"])]
        cells.append("diverges" if row["rollout"] is None else _short(row["rollout"]))
        nothing = "diverges" if row["diverged"] else "no oscillation"
        cells.append(nothing if frequency is None else f"{frequency:.4f}")
        text += "| " + " | ".join(cells) + " |\n"
    return text + "\n"
