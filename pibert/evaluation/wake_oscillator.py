"""The wake oscillator of Facchinetti, de Langre and Biolley (2004): a reference for coupled models.

A cylinder on a spring is driven by a van der Pol oscillator q, which stands for the wake:

    (m + m_f) y'' + (c + gamma Omega) y' + k y = C_L0 q / 4
    q'' + epsilon Omega (q^2 - 1) q' + Omega^2 q = A y''

Lengths are in diameters D, times in D/U, masses in rho D^2: Omega = 2 pi St, m_f = C_M pi / 4,
k = m (2 pi / U*)^2 and c = 2 zeta m (2 pi / U*), where U* is the reduced velocity in vacuum. The
lift coefficient of the wake is C_L0 q / 2; alone, q settles at an amplitude of 2 and the frequency
St. The default coefficients are the published ones. If the recordings differ in their Reynolds
number, St = strouhal (1 - reynolds_shift / Re), the form of Roshko (1954).

``fit_wake_oscillator`` chooses the coefficients that predict the displacement best from many frames
of the training recordings. A prediction starts from the displacement, velocity and lift of some
consecutive frames: they determine q and its slope.

The module is here and not among ``models/references`` because it predicts the structure alone, from
plain series: it has no fields.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from math import pi
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pibert.data.wording import import_extra
from pibert.fields import Trajectory

Series = NDArray[np.float64]
LARGEST_STEP = 0.25
"""Of the Runge-Kutta method, in D/U."""
SPANS = (6.0, 25.0)
"""Lengths of the predictions that the fit compares, one after the other, in D/U: about one and four
periods of a wake."""
STARTS = 24
"""Predictions from each recording."""
SETTLING = 100.0
"""Time after which a prediction must have the amplitude of its recording, in D/U."""
SMALLEST = 0.02
"""Displacements are fitted relative to their standard deviation, or to this if it is smaller."""


@dataclass(frozen=True, kw_only=True)
class Mounting:
    """How the body is mounted, in dimensionless numbers."""

    mass: float
    """m / (rho D^2)."""
    reduced_velocity: float
    """U / (f D), f the natural frequency in vacuum."""
    damping_ratio: float = 0.0
    """Share of critical damping, in vacuum."""
    reynolds: float | None = None

    def __post_init__(self) -> None:
        if not (self.mass > 0 and self.reduced_velocity > 0 and self.damping_ratio >= 0):
            raise ValueError(
                "expected a positive mass and reduced velocity and a damping ratio of 0 or more, "
                f"found {self.mass}, {self.reduced_velocity} and {self.damping_ratio}"
            )

    @property
    def stiffness(self) -> float:
        return self.mass * (2 * pi / self.reduced_velocity) ** 2

    @property
    def damping(self) -> float:
        return 4 * pi * self.damping_ratio * self.mass / self.reduced_velocity


@dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """A recorded vibration: consecutive frames at evenly spaced times."""

    mounting: Mounting
    interval: float
    """Time between two frames, in D/U."""
    displacement: Series
    """In D."""
    velocity: Series
    """In U."""
    lift: Series
    """Coefficient of the force on the body across the stream, 2 F / (rho U^2 D)."""

    def __post_init__(self) -> None:
        together = np.stack((self.displacement, self.velocity, self.lift))
        if together.shape[1] < 3 or not np.isfinite(together).all() or not self.interval > 0:
            raise ValueError(
                "expected at least 3 frames with finite displacement, velocity and lift and a "
                f"positive interval, found {together.shape[1]} frames, "
                f"{int((~np.isfinite(together)).sum())} values that are not finite and an interval "
                f"of {self.interval}"
            )

    @classmethod
    def of_trajectory(cls, trajectory: Trajectory, *, damping_ratio: float) -> Self:
        """Return the response of the body in a trajectory of tandem or single cylinders."""
        missing = {"displacement", "velocity", "lift"} - {*trajectory.series}
        missing |= {"Re", "mass_ratio", "reduced_velocity"} - {*trajectory.parameters}
        if missing:
            raise ValueError(
                f"trajectory {trajectory.name!r} lacks {', '.join(sorted(missing))}; a wake "
                "oscillator needs the series and parameters that 'pibert generate tandem' records"
            )
        given, spec = trajectory.parameters, trajectory.spec
        steps = np.diff(trajectory.time.double().numpy())
        if np.ptp(steps) > 1e-3 * steps.mean():
            raise ValueError(
                f"trajectory {trajectory.name!r} has time steps from {steps.min():g} to "
                f"{steps.max():g}; a wake oscillator needs evenly spaced frames"
            )
        length = spec.reference_length or 1.0
        speed = spec.reference_velocity
        if speed is None:
            if spec.viscosity is None:
                raise ValueError(
                    f"trajectory {trajectory.name!r} states neither a reference velocity nor a "
                    "viscosity, so its time step in D/U is unknown"
                )
            speed = given["Re"] * spec.viscosity / length
        mounting = Mounting(
            mass=0.25 * pi * given["mass_ratio"],
            reduced_velocity=given["reduced_velocity"],
            damping_ratio=damping_ratio,
            reynolds=given["Re"],
        )
        y, v, lift = (
            trajectory.series[name].double().numpy()
            for name in ("displacement", "velocity", "lift")
        )
        return cls(
            mounting=mounting,
            interval=float(steps.mean()) * speed / length,
            displacement=y,
            velocity=v,
            lift=lift,
        )

    def part(self, first: int, frames: int) -> "Response":
        """Return some consecutive frames."""
        cut = slice(first, first + frames)
        return replace(
            self,
            displacement=self.displacement[cut],
            velocity=self.velocity[cut],
            lift=self.lift[cut],
        )


@dataclass(frozen=True)
class WakeOscillator:
    """The coefficients of the model."""

    strouhal: float = 0.2
    lift: float = 0.3
    """C_L0, the amplitude of the lift coefficient of a fixed cylinder."""
    epsilon: float = 0.3
    coupling: float = 12.0
    """A."""
    stall: float = 0.8
    """gamma, the damping by the fluid."""
    added_mass: float = 1.0
    """C_M."""
    reynolds_shift: float = 0.0
    """a in St = strouhal (1 - a / Re); 0: the same Strouhal number at all Reynolds numbers."""

    def shedding_frequency(self, reynolds: float | None) -> float:
        """Return the Strouhal number of a fixed cylinder."""
        if not self.reynolds_shift:
            return self.strouhal
        if reynolds is None:
            raise ValueError(
                "the Strouhal number of this wake oscillator depends on the Reynolds number, and "
                "the mounting states none"
            )
        return self.strouhal * max(1 - self.reynolds_shift / reynolds, 0.05)

    def predict(self, history: Response, frames: int) -> Series:
        """Return displacement, velocity and lift coefficient (3, frames) after a history."""
        return self._predict([history], frames)[:, 0]

    def simulate(
        self, mounting: Mounting, frames: int, interval: float, start: Sequence[float]
    ) -> Series:
        """Return y, y', q and q' (4, frames), the first one interval after the state ``start``."""
        return self._advance([mounting], np.array([start], float), frames, interval)[:, 0]

    def _predict(self, histories: Sequence[Response], frames: int) -> Series:
        """Return displacement, velocity and lift (3, flow, frames) of several flows."""
        interval = histories[0].interval
        assert all(history.interval == interval for history in histories)
        mounts = [history.mounting for history in histories]
        y, v, q, _ = self._advance(mounts, self._start(histories), frames, interval)
        m, c, k = (
            np.array([[getattr(mount, name)] for mount in mounts])
            for name in ("mass", "damping", "stiffness")
        )
        rates = self._rates(mounts)[:, 1, :3, None]
        acceleration = rates[:, 0] * y + rates[:, 1] * v + rates[:, 2] * q
        return np.stack((y, v, 2 * (m * acceleration + c * v + k * y)))

    def _start(self, histories: Sequence[Response]) -> Series:
        """Return y, y', q and q' (flow, 4) at the last frame of each history."""
        states = []
        for history in histories:
            mount = history.mounting
            y, v, lift = history.displacement[-3:], history.velocity[-3:], history.lift[-3:]
            acceleration = (0.5 * lift - mount.damping * v - mount.stiffness * y) / mount.mass
            # The force of the wake is that on the body less added mass and damping by the fluid.
            fluid = self.stall * 2 * pi * self.shedding_frequency(mount.reynolds)
            added = 0.25 * pi * self.added_mass
            q = 4 / self.lift * (0.5 * lift + added * acceleration + fluid * v)
            # Second-order one-sided difference.
            slope = (1.5 * q[2] - 2 * q[1] + 0.5 * q[0]) / history.interval
            states.append((y[2], v[2], q[2], slope))
        return np.array(states)

    def _rates(self, mounts: Sequence[Mounting]) -> Series:
        """Return the matrices (flow, 4, 4) of the linear terms, without van der Pol's cubic one."""
        found = []
        for mount in mounts:
            omega = 2 * pi * self.shedding_frequency(mount.reynolds)
            mass = mount.mass + 0.25 * pi * self.added_mass
            damping = mount.damping + self.stall * omega
            body = np.array([-mount.stiffness, -damping, 0.25 * self.lift, 0.0]) / mass
            wake = self.coupling * body + [0.0, 0.0, -(omega**2), self.epsilon * omega]
            found.append([[0.0, 1.0, 0.0, 0.0], body, [0.0, 0.0, 0.0, 1.0], wake])
        return np.array(found)

    def _advance(
        self, mounts: Sequence[Mounting], state: Series, frames: int, interval: float
    ) -> Series:
        """Return the states (4, flow, frames) after (flow, 4), by Runge-Kutta of order 4."""
        rates = self._rates(mounts)
        cubic = np.array([2 * pi * self.shedding_frequency(m.reynolds) for m in mounts])
        cubic *= self.epsilon

        def slope(s: Series) -> Series:
            change = np.matmul(rates, s[:, :, None])[:, :, 0]
            change[:, 3] -= cubic * s[:, 2] ** 2 * s[:, 3]
            return change

        count = max(1, int(np.ceil(interval / LARGEST_STEP)))
        h = interval / count
        path = np.empty((frames, *state.shape))
        for frame in range(frames):
            for _ in range(count):
                a = slope(state)
                b = slope(state + 0.5 * h * a)
                c = slope(state + 0.5 * h * b)
                d = slope(state + h * c)
                # A far wrong start makes the cubic term too stiff for the step.
                state = np.clip(state + h / 6 * (a + 2 * (b + c) + d), -1e3, 1e3)
            path[frame] = state
        return path.transpose(2, 1, 0)


_BOUNDS = {
    "strouhal": (0.05, 0.5),
    "lift": (0.02, 5.0),
    "epsilon": (0.01, 5.0),
    "coupling": (0.1, 100.0),
    "stall": (0.01, 10.0),
    "added_mass": (0.1, 5.0),
    "reynolds_shift": (0.1, 50.0),
}
"""Least and largest value of each coefficient in the fit."""
GUESSES = (
    WakeOscillator(),
    WakeOscillator(strouhal=0.17, lift=0.4, epsilon=0.1, coupling=4.0, stall=0.3),
    WakeOscillator(strouhal=0.2, lift=1.0, epsilon=0.6, coupling=12.0, stall=2.0),
)
"""Where a fit starts; the best result counts."""


def fit_wake_oscillator(
    responses: Sequence[Response], guesses: Sequence[WakeOscillator] = GUESSES
) -> WakeOscillator:
    """Return the coefficients with the least error of displacement on training recordings.

    The error has two terms of equal weight: predictions from ``STARTS`` frames of each recording,
    first over short and then over long spans; and the amplitude to which a prediction settles,
    which short predictions of a settled vibration do not determine. Squared errors grow linearly
    once they are large, so that a few predictions of the wrong phase do not decide.
    """
    optimize = import_extra("scipy.optimize", "fitting a wake oscillator")
    if not responses:
        raise ValueError("expected at least one recorded response to fit, found none")
    numbers = {response.mounting.reynolds for response in responses}
    depends = None not in numbers and len(numbers) > 1
    names = [name for name in _BOUNDS if name != "reynolds_shift" or depends]
    bounds = np.log([_BOUNDS[name] for name in names]).T

    def model_of(logarithms: Series) -> WakeOscillator:
        return WakeOscillator(**dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    found = []
    for guess in guesses:
        values = dict(zip(_BOUNDS, astuple(guess), strict=True)) | {"reynolds_shift": 20.0}
        if depends:
            values["strouhal"] *= 1.2
        place = np.log([values[name] for name in names])
        for span in SPANS:
            groups = _windows(responses, span)

            def residuals(x: Series, groups: list[_Windows] = groups) -> Series:
                model = model_of(x)
                return np.concatenate((_errors(model, groups), _settled(model, responses)))

            result = optimize.least_squares(
                residuals,
                place,
                bounds=bounds,
                loss="soft_l1",
                f_scale=0.1,
                max_nfev=60,
            )
            place = np.clip(result.x, bounds[0] + 1e-6, bounds[1] - 1e-6)
        found.append((result.cost, model_of(result.x)))
    return min(found, key=lambda pair: pair[0])[1]


class _Windows(NamedTuple):
    """Histories that share interval and length, and the displacements that follow them."""

    histories: list[Response]
    targets: list[Series]
    scales: list[float]


def _windows(responses: Sequence[Response], span: float) -> list[_Windows]:
    """Return histories and what follows, over a span in D/U or what the recordings have."""
    groups: dict[tuple[float, int], _Windows] = {}
    for response in responses:
        total = len(response.displacement)
        frames = min(round(span / response.interval), total - 3)
        if frames < 1:
            raise ValueError(
                f"expected recordings of at least 4 frames to fit a wake oscillator, found {total}"
            )
        group = groups.setdefault((response.interval, frames), _Windows([], [], []))
        for first in np.unique(np.linspace(0, total - 3 - frames, STARTS).astype(int)):
            group.histories.append(response.part(int(first), 3))
            group.targets.append(response.part(int(first) + 3, frames).displacement)
            group.scales.append(max(float(response.displacement.std()), SMALLEST))
    return list(groups.values())


def _errors(model: WakeOscillator, groups: Sequence[_Windows]) -> Series:
    """Relative errors of the displacement, of mean square one if they are as large as it."""
    found = []
    for histories, targets, scales in groups:
        error = model._predict(histories, len(targets[0]))[0] - np.array(targets)
        found.append((error / np.array(scales)[:, None]).ravel())
    together = np.concatenate(found)
    return together / np.sqrt(len(together))


def _settled(model: WakeOscillator, responses: Sequence[Response]) -> Series:
    """Relative errors of the amplitude after a long time, scaled likewise."""
    found = []
    for interval in {response.interval for response in responses}:
        same = [response for response in responses if response.interval == interval]
        frames = round(SETTLING / interval)
        y = model._predict([response.part(0, 3) for response in same], frames)[0]
        true = np.array([response.displacement.std() for response in same])
        found.append((y[:, frames // 2 :].std(1) - true) / np.maximum(true, SMALLEST))
    together = np.concatenate(found)
    return together / np.sqrt(len(together))
