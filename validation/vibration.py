"""Bodies that move, or could: a cylinder on a spring, and two fixed ones in tandem."""

from pathlib import Path

from pibert.solver import run
from pibert.solver.wakes import tandem
from validation.checks import Check, Part, new_figure, save

REDUCED = (3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0)


def measure(folder: Path, device: str, quick: bool) -> Part:
    cells = 12.0 if quick else 24.0
    reduced = REDUCED[::4] if quick else REDUCED
    case = tandem(
        [150.0] * len(reduced),
        mass=[2.0] * len(reduced),
        reduced_velocity=reduced,
        damping_ratio=[0.0] * len(reduced),
        cells=cells,
        gap=None,
        domain=(30.0, 20.0) if quick else (42.0, 28.0),
        upstream=10.0 if quick else 14.0,
        view=(-1.0, 5.0, -2.0, 2.0),
        perturbation=0.5,
        device=device,
    )
    span = 40.0 if quick else 60.0
    solution = run(case, 2, case.steps(span), warm_up=case.steps(2 * span), compiled=True)
    y = solution.motion["displacement"].double()
    amplitudes = (0.5 * (y.amax(1) - y.amin(1))).tolist()
    figure = new_figure(9.0, 3.4)
    axes = figure.subplots(1, 2)
    axes[0].plot(reduced, amplitudes, "o-")
    axes[0].set(xlabel="reduced velocity U / (f D)", ylabel="amplitude, D")
    at = amplitudes.index(max(amplitudes))
    last = case.steps(25.0)
    axes[1].plot([case.dt * i for i in range(last)], y[at, -last:])
    axes[1].set(xlabel="U t / D", ylabel=f"displacement at {reduced[at]:g}, D")
    save(figure, folder / "vibration.png")
    by = dict(zip(reduced, amplitudes, strict=True))
    checks = [Check("largest amplitude, D", max(amplitudes), 0.53 * 0.93, 0.53 * 1.07)]
    checks += [
        Check(f"amplitude at U* = {u:g}, D: locked in", by[u], 0.3, 0.6)
        for u in (4.0, 5.0, 6.0, 7.0)
        if u in by
    ]
    checks += [
        Check(f"amplitude at U* = {u:g}, D: not locked in", by[u], 0.0, 0.2)
        for u in (3.0, 9.0)
        if u in by
    ]
    return Part(
        "Free vibration, Re 150",
        f"One cylinder on a spring, m / (rho D^2) = 2, no damping, D = {cells:g} cells (immersed "
        "boundary), free to move in the cross-flow direction. Ahn and Kallinderis (2006) and "
        "Borazjani and Sotiropoulos (2009) find lock-in for reduced velocities of about 4 to 7 and "
        "a largest amplitude of about 0.53 D. We chose the margin on that amplitude, 7 %, and the "
        "thresholds for lock-in.",
        tuple(checks),
        (("vibration.png", "Amplitude over reduced velocity; displacement at the peak"),),
    )


def measure_tandem(folder: Path, device: str, quick: bool) -> Part:
    cells = 12.0 if quick else 24.0
    drags = {}
    for gap in (3.0, 4.0):
        case = tandem(
            [200.0],
            # So heavy and stiff that it stands still.
            mass=[1e9],
            reduced_velocity=[1.0],
            damping_ratio=[1.0],
            cells=cells,
            gap=gap,
            domain=(40.0, 20.0) if quick else (50.0, 30.0),
            upstream=14.0 if quick else 18.0,
            perturbation=0.5,
            device=device,
        )
        span = 60.0
        solution = run(case, 2, case.steps(span), warm_up=case.steps(100.0), compiled=True)
        first = float(solution.force[0, :, 0].double().mean())
        second = float(solution.motion["drag"][0].double().mean())
        drags[gap] = (first, second)
    return Part(
        "Fixed cylinders in tandem, Re 200",
        f"Centres 3 and 4 D apart, D = {cells:g} cells. The upstream cylinder uses interpolated "
        "bounce-back, the downstream one an immersed boundary. Meneghini et al. (2001): up to 3 D "
        "the upstream cylinder shields the downstream one, whose drag is negative; at 4 D vortices "
        "form in the gap, and its drag is positive.",
        (
            Check("C_D of the downstream cylinder, 3 D", drags[3.0][1], -0.4, 0.0),
            Check("C_D of the downstream cylinder, 4 D", drags[4.0][1], 0.0, 0.8),
        ),
        (),
        f"C_D of the upstream cylinder: {drags[3.0][0]:.3f} at 3 D, {drags[4.0][0]:.3f} at 4 D.",
    )
