"""Windows whose newest frame comes from the governing equation without one of its terms.

With two or more frames and a known time step, the newest frame is computed from the one before it.
The family defines which terms can be left out, and how (``Family.omissible_terms``,
``Family.change_without``). If a single frame can violate the family, as in incompressible flow, it
is changed by a given amount.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert import sample_rng
from pibert.fields import PARAMETER_WIDTH, FieldSpec, Normalizer, known_coefficients
from pibert.fields.equations import channel_indices
from pibert.physics import find_family
from pibert.physics.families.family import Omission
from pibert.physics.stepping import StepPlan, plan_steps


class OmittedTerms:
    """Last frames without a term, for windows of one spec.

    The table holds standardised parameters of the training data, which determine the number of
    sub-steps. Raises ValueError, with the reason, if no term can be left out.
    """

    def __init__(
        self,
        spec: FieldSpec,
        normalizer: Normalizer,
        history: int,
        parameter_table: Float[Tensor, "n 16"] | None = None,
    ) -> None:
        if spec.family is None:
            raise ValueError("the field spec names no PDE family")
        self.family = find_family(spec.family)
        missing = [name for name in self.family.channels if name not in spec.channels]
        if missing:
            raise ValueError(f"family {self.family.name!r} needs channels {missing}")
        self.spec, self.normalizer = spec, normalizer
        has_steps = history > 1 and spec.dt is not None
        self.single = not has_steps and self.family.required_frames(spec.channels) == 1
        """Whether only the last frame is changed, by a given amount."""
        if spec.dt is None and not self.single:
            raise ValueError("the time step is not known")
        table = torch.zeros(1, PARAMETER_WIDTH) if parameter_table is None else parameter_table
        coefficients = known_coefficients(self.family, spec, table)
        self.terms = self.family.omissible_terms(tuple(coefficients), has_steps)
        """Terms that are left out, each in an equal share of the samples."""
        if not self.terms:
            raise ValueError(
                f"no term of {self.family.name!r} can be left out with the coefficients that are "
                f"known: {sorted(coefficients) or 'none'}"
            )
        self._plan = None if self.single else self._make_plan(coefficients)

    def _make_plan(self, coefficients: Mapping[str, Any]) -> StepPlan:
        """Sub-steps for the fastest training data."""
        dt, mean, std = self.spec.dt, self.normalizer.mean, self.normalizer.std
        assert dt is not None
        u, v = self.spec.velocity or (None, None)
        fastest = [0.0 if i is None else abs(mean[i]) + 2 * std[i] for i in (u, v)]
        spreading = [
            float(torch.as_tensor(value).max())
            for name, value in coefficients.items()
            if name.startswith(("viscosity", "diffusivity"))
        ]
        return plan_steps(self.spec.grid, dt, (fastest[0], fastest[1]), max(spreading, default=0.0))

    def change(
        self,
        frames: Float[Tensor, "b h c y x"],
        parameters: Float[Tensor, "b q"],
        known: Bool[Tensor, "b y x"],
        seeds: Int[Tensor, " b"],
    ) -> Float[Tensor, "b c y x"]:
        """The change of the last standardised frame, zero where not known."""
        mean, std = self.normalizer.mean, self.normalizer.std
        indices = channel_indices(self.family, self.spec.channels)
        lot = sample_rng.integer(seeds, "omitted", len(self.terms))
        omission = Omission(
            fields={name: frames[:, :, i] * std[i] + mean[i] for name, i in indices.items()},
            known=known,
            coefficients=known_coefficients(self.family, self.spec, parameters),
            keep={term: (lot != i).to(frames.dtype) for i, term in enumerate(self.terms)},
            grid=self.spec.grid,
            plan=self._plan,
        )
        whole = torch.zeros_like(frames[:, -1])
        for name, change in self.family.change_without(omission).items():
            whole[:, indices[name]] = change / std[indices[name]]
        return torch.where(known[:, None], whole, 0.0)
