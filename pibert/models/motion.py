"""Newton's law for bodies on springs, solved from one frame to the next.

    y'' + 2 zeta omega y' + omega^2 y = C / (2 m),    omega = 2 pi / U*,    m = pi / 4 mass ratio

in units of D, U and the density of the fluid; C is the coefficient of its force on the body.
Between two frames, s from 0 to 1, the force is a polynomial in time:

    C(s) = (1 - s) C_0 + s C_1 + 4 s (1 - s) (a + (1 - 2 s) b)

C_0 belongs to the last frame and C_1 to the predicted one. A model predicts a and b, in standard
deviations of C, in the place of changes of displacement and velocity. So these follow from the
force for every mass, spring and time step, and two numbers are enough to make both exact.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import MASS_RATIO, REDUCED_VELOCITY, FieldSpec, MovingBody
from pibert.models.bodies import StateUnits
from pibert.models.layers import is_captured

_NODES, _WEIGHTS = (array.tolist() for array in np.polynomial.legendre.leggauss(8))
"""Of the Gauss rule on [-1, 1]."""
REYNOLDS = "Re"

Numbers = Float[Tensor, " b"]


class EquationOfMotion(StateUnits):
    """Replaces the predicted displacement and velocity of bodies on springs."""

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__(spec)
        numbers = ["dt"]
        self.parameter_names: tuple[str, ...] = (MASS_RATIO, REDUCED_VELOCITY)
        """Parameters that must be known."""
        if spec.reference_velocity is None:
            self.parameter_names += (REYNOLDS,)
            numbers += ["viscosity", "reference_length"]
        missing = [name for name in self.parameter_names if name not in spec.parameter_names]
        missing += [name for name in numbers if getattr(spec, name) is None]
        if missing:
            raise ValueError(
                "a body on a spring moves by Newton's law, but the data do not state "
                f"{', '.join(missing)}; state them, or leave out the spring of the body"
            )

    def forward(
        self,
        frames: Float[Tensor, "b h c y x"],
        last: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"] | None,
    ) -> Float[Tensor, "b h c y x"]:
        """Return predicted frames with displacements and velocities by Newton's law.

        Args:
            frames: Standardised, with a uniform state.
            last: The newest known frame, likewise.
            parameters: As a model takes them.
        """
        with torch.autocast(frames.device.type, enabled=False):
            count = len(self.spec.state)
            before = last[:, -count:, 0, 0]
            mean, std = self.mean.to(before), self.std.to(before)
            predicted = frames[:, :, -count:, 0, 0].to(before)
            changes, columns = predicted - before[:, None], list(predicted.unbind(2))
            for body in self.spec.on_springs:
                y, v, c = places = self._places(body)
                displacement, velocity, force = (before[:, i] * std[i] + mean[i] for i in places)
                mount = self._mount(body, parameters, before)
                moved = []
                for step in range(frames.shape[1]):
                    ahead = predicted[:, step, c] * std[c] + mean[c]
                    bend, skew = (std[c] * changes[:, step, i] for i in (y, v))
                    course = (force, ahead, bend, skew)
                    displacement, velocity = advance(displacement, velocity, course, *mount)
                    moved.append((displacement, velocity))
                    force = ahead
                for place, values in zip((y, v), zip(*moved, strict=True), strict=True):
                    columns[place] = (torch.stack(values, 1) - mean[place]) / std[place]
            state = torch.stack(columns, 2)[..., None, None].to(frames.dtype)
        shape = (-1, -1, -1, *frames.shape[-2:])
        return torch.cat((frames[:, :, :-count], state.expand(shape)), 2)

    def misfit(
        self,
        last: Float[Tensor, "b c y x"],
        following: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"] | None,
    ) -> float:
        """Return the error of the law for recorded forces, over that of repeating displacements.

        It is the largest of all bodies, each a root mean square; both frames are standardised.
        """
        first = len(self.spec.channels) - len(self.spec.state)
        displacements = [self.spec.channels.index(b.displacement) for b in self.spec.on_springs]
        forces = [first + self._places(body)[2] for body in self.spec.on_springs]
        straight = last.clone()  # the course of the forces, without bends
        straight[:, forces] = following[:, forces]
        moved = self(straight[:, None], last, parameters)[:, 0]
        errors, changes = (
            (following - found)[:, displacements, 0, 0].square().mean(0) for found in (moved, last)
        )
        return float((errors / changes.clamp(min=1e-12)).max().sqrt())

    def _places(self, body: MovingBody) -> tuple[int, int, int]:
        """Return the indices of displacement, velocity and force in the state."""
        assert body.spring is not None
        names = (body.displacement, body.spring.velocity, body.spring.force)
        y, v, c = (self.spec.state.index(name) for name in names)
        return y, v, c

    def _mount(
        self, body: MovingBody, parameters: Tensor | None, like: Tensor
    ) -> tuple[Numbers, Numbers, float, Numbers]:
        """Return mass, natural frequency, damping ratio and the time between frames."""
        assert body.spring is not None and self.spec.dt is not None
        mass = 0.25 * math.pi * self._value(MASS_RATIO, parameters, like)
        omega = 2 * math.pi / self._value(REDUCED_VELOCITY, parameters, like)
        speed: Tensor | float | None = self.spec.reference_velocity
        if speed is None:
            assert self.spec.viscosity is not None and self.spec.reference_length is not None
            rate = self.spec.viscosity / self.spec.reference_length
            speed = rate * self._value(REYNOLDS, parameters, like)
        interval = torch.as_tensor(self.spec.dt * speed / body.unit).to(like).expand_as(mass)
        return mass, omega, body.spring.damping_ratio, interval

    def _value(self, name: str, parameters: Tensor | None, like: Tensor) -> Numbers:
        """Return a parameter of every sample."""
        index = self.spec.parameter_names.index(name)
        scaled = None if parameters is None else parameters[:, index].to(like)
        if scaled is None or (not is_captured(like) and bool(scaled.isnan().any())):
            raise ValueError(
                f"expected the {name} of every flow, found none: the bodies of this model move by "
                f"Newton's law; state it (--parameter {name}=NUMBER)"
            )
        return self.spec.parameters[index].restore(scaled)


def advance(
    y: Numbers,
    v: Numbers,
    course: tuple[Numbers, Numbers, Numbers, Numbers],
    mass: Numbers,
    omega: Numbers,
    damping_ratio: float,
    interval: Numbers,
) -> tuple[Numbers, Numbers]:
    """Return displacement and velocity after an interval.

    ``course`` has C_0, C_1, a and b, see above.
    """
    decay, cycle = damping_ratio * omega, omega * math.sqrt(1 - damping_ratio**2)

    def response(time: Tensor) -> tuple[Tensor, Tensor]:
        """Return displacement and velocity after a push by one unit of momentum per mass."""
        shrink = torch.exp(-decay * time)
        sine = shrink * torch.sin(cycle * time) / cycle
        return sine, shrink * torch.cos(cycle * time) - decay * sine

    sine, cosine = response(interval)
    ahead = (cosine + 2 * decay * sine) * y + sine * v
    speed = cosine * v - omega**2 * sine * y
    start, end, bend, skew = course
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        s = 0.5 + 0.5 * node
        force = (1 - s) * start + s * end + 4 * s * (1 - s) * (bend + (1 - 2 * s) * skew)
        push = 0.5 * weight * interval * force / (2 * mass)
        moved, sped = response((1 - s) * interval)
        ahead, speed = ahead + push * moved, speed + push * sped
    return ahead, speed
