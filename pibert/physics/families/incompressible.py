"""Incompressible Navier-Stokes equations for velocity (u, v), pressure p and viscosity nu.

    divergence:  u_x + v_y = 0
    vorticity:   w_t + u w_x + v w_y - nu lap w = 0,  w = v_x - u_y
    momentum:    u_t + u u_x + v u_y + p_x / rho - nu lap u = 0, and the same for v with p_y

The vorticity form, the default, needs no pressure. The momentum form (the paper's) without a
pressure channel is not small on an exact flow: the missing grad p is of the size of the
acceleration itself, so the residual mostly marks the wake, not the error.

The divergence is that of the last frame, since it holds at every instant. Derivatives of the
vorticity are taken from the velocity with stencils of full order (w_x = v_xx - u_xy, ...):
differentiating a discrete vorticity again would lose up to two orders next to sides that are not
periodic.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from pibert.physics.derivatives import (
    Order,
    d2dx2,
    d2dy2,
    d3dx3,
    d3dy3,
    ddx,
    ddy,
    divergence,
    gradient,
    laplacian,
    together,
    where_defined,
)
from pibert.physics.families.family import (
    Coefficient,
    Coefficients,
    Family,
    Frames,
    Omission,
    Residuals,
    advection,
    material_derivative,
    midpoint,
    spread,
    stacked,
)
from pibert.physics.grid import Grid
from pibert.physics.stepping import ORDER, step


class Incompressible(Family):
    """Terms ``divergence`` and ``vorticity`` (1 component each).

    Coefficient: ``viscosity`` (kinematic); without it the viscous term is left out.
    """

    name = "incompressible"
    channels = ("u", "v")
    velocity = ("u", "v")
    is_solenoidal = True
    coefficients = {"viscosity": 0.0}
    terms: tuple[str, ...] = ("divergence", "vorticity")
    equation = "ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0"
    symbols = {"viscosity": "nu"}
    diagnostic_names = ("divergence_share", "momentum_drift")

    def diagnostics(
        self, fields: Frames, grid: Grid, *, dt: float | None, **coefficients: Coefficient
    ) -> dict[str, Tensor]:
        """Divergence relative to the velocity gradients, and the change of momentum in a box.

        The share is a root mean square over points, the drift relative to the speed of the first
        frame, which forces that push both ways leave at zero; both are means over frames.
        """
        if grid.body is not None:  # stencils next to it would cross it
            return {}
        in_box = grid.periodic_x and grid.periodic_y
        order: Order = "spectral" if in_box else 2
        velocity = torch.stack([fields[name] for name in self.velocity], dim=-3)
        along_x, along_y = gradient(velocity, grid, order)
        scale = (along_x.square() + along_y.square()).sum(-3).mean((-2, -1)).sqrt()
        size = divergence(fields["u"], fields["v"], grid, order).square().mean((-2, -1)).sqrt()
        found = {"divergence_share": (size / scale).mean(-1)}
        if in_box:
            mean = velocity.mean((-2, -1))  # (*batch, t, 2)
            drift = torch.linalg.vector_norm(mean - mean[..., :1, :], dim=-1)
            speed = velocity[..., 0, :, :, :].square().sum(-3).mean((-2, -1)).sqrt()
            found["momentum_drift"] = drift.mean(-1) / speed
        return found

    def required_frames(self, channels: Sequence[str]) -> int:
        return 1  # continuity holds in every frame

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        # Fields that share a derivative are differentiated together.
        last_u, last_v = fields["u"][..., -1, :, :], fields["v"][..., -1, :, :]
        u, u_t = midpoint(fields["u"], dt)
        v, v_t = midpoint(fields["v"], dt)
        rates = () if u_t is None or v_t is None else (u_t, v_t)
        u_y, v_y, last_v_y, *rates_y = together(ddy, grid, order, u, v, last_v, *rates[:1])
        v_yy, u_yy = together(d2dy2, grid, order, v, u)
        crossed = torch.stack((v, u_y, v_y, v_yy, last_u, *rates[1:]))
        _, u_xy, v_xy, v_xyy, last_u_x, *rates_x = ddx(crossed, grid, order).unbind(0)
        v_xx, u_xxy = d2dx2(crossed[:2], grid, order).unbind(0)
        residual = torch.addcmul(u * (v_xx - u_xy), v, v_xy - u_yy)
        if rates:
            residual = residual + (rates_x[0] - rates_y[0])
        if "viscosity" in factors:
            of_v = d3dx3(v, grid, order) + v_xyy
            of_u = u_xxy + d3dy3(u, grid, order)
            residual = residual - spread(factors["viscosity"]) * (of_v - of_u)
        now = last_u_x + last_v_y
        return {"divergence": now.unsqueeze(-3), "vorticity": residual.unsqueeze(-3)}

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        stepped = has_steps and "viscosity" in known
        return ("pressure", "advection", "diffusion") if stepped else ("pressure",)

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Each frame stepped without pressure, or also without advection; or less its diffusion.

        One frame alone is moved along the rate without pressure, by an amount of any size.
        """
        plan, grid = omission.plan, omission.grid
        known = omission.known[:, None]
        viscosity = spread(omission.coefficients.get("viscosity", 0.0), 3)
        now = stacked(omission.fields, self.velocity, -1)
        if plan is None:
            change, _ = where_defined(
                lambda f: advection(f, grid, ORDER) + viscosity * laplacian(f, grid, ORDER),
                now,
                known=known,
            )
            return dict(zip(self.velocity, change.unbind(1), strict=True))
        before, wrapped = stacked(omission.fields, self.velocity, -2), plan.wrapped
        carried = spread(omission.keep.get("advection", 1.0), 3)
        later = step(
            before,
            now,
            omission.known,
            lambda f: (
                carried * advection(f, wrapped, ORDER)
                + plan.diffusion * viscosity * laplacian(f, wrapped, ORDER)
            ),
            plan,
        )
        change = later - now
        if "diffusion" in omission.keep:
            # The mean of both frames is near the mean over the step.
            diffused, _ = where_defined(
                lambda f: viscosity * laplacian(f, grid, ORDER), (before + now) / 2, known=known
            )
            kept = omission.keep["diffusion"][:, None, None, None] > 0
            change = torch.where(kept, change, -plan.dt * diffused)
        return dict(zip(self.velocity, change.unbind(1), strict=True))


class IncompressibleMomentum(Incompressible):
    """Terms ``divergence`` (1 component) and ``momentum`` (2); uses a pressure channel.

    Coefficients: ``viscosity``, and ``density``, without which the pressure is one divided by it.
    """

    name = "incompressible-momentum"
    optional_channels = ("p",)
    coefficients = {"viscosity": 0.0, "density": 1.0}
    terms = ("divergence", "momentum")
    symbols = {"viscosity": "nu", "density": "rho"}

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        now = divergence(fields["u"][..., -1, :, :], fields["v"][..., -1, :, :], grid, order)
        velocity, residual = material_derivative(fields, grid, dt, order)
        if "p" in fields:
            force = torch.stack(gradient(midpoint(fields["p"], dt)[0], grid, order), dim=-3)
            residual = residual + force / spread(factors.get("density", 1.0), axes=3)
        if "viscosity" in factors:
            viscosity = spread(factors["viscosity"], axes=3)
            residual = residual - viscosity * laplacian(velocity, grid, order)
        return {"divergence": now.unsqueeze(-3), "momentum": residual}
