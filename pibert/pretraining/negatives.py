"""Negatives of equation consistency prediction: windows that look real and violate their equation.

A window is the model's input: one frame of an incompressible flow, two frames where the equation is
of first order in time, and for waves three frames of u, or two of (u, u_t). Kinds of negatives:

    noise        every Fourier mode of every frame and channel rotated a little (``phases``)
    adversarial  the smallest smooth rotation that violates the equation and fools the model
    shuffled     the frames in another order
    parameters   the parameters of another trajectory
    boundary     wrong values at a side or a body, faded out inwards (``boundaries``)
    omitted      the last frame computed without a term of the equation (``omission``)

Noise, adversarial and shuffled windows have the mean, variance and spectrum of the valid one;
shuffled ones for the set of frames only. The rotations of frames and channels are independent: the
same rotation for all would leave continuity intact. A sample without a known parameter to exchange
gets noise.

``amplitude`` is the root mean square of a change over that of the fluctuation of the changed field,
both standardised. In training it is drawn for each sample, log-uniformly. All random numbers come
from a sample's seed, so a negative does not depend on the batch that its sample is in.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pibert import sample_rng
from pibert.config import Bounds, NonNegative, NonNegativeInt, check
from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.physics import find_family
from pibert.pretraining import phases
from pibert.pretraining.adversarial import WindowResidual, attack, evaluation_mode
from pibert.pretraining.boundaries import BrokenBoundaries
from pibert.pretraining.omission import OmittedTerms

Kind = Literal["noise", "adversarial", "shuffled", "parameters", "boundary", "omitted"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Share = Annotated[float, Bounds(above=0, most=1)]

Windows = tuple[Float[Tensor, "b hc y x"], Float[Tensor, "b 16"]]

LARGEST_OMISSION = 1.0
"""Largest amplitude of the change that an omitted term may make."""


@dataclass(frozen=True, kw_only=True)
class NegativesConfig:
    """Which negatives, and how far they are from valid."""

    kinds: tuple[Kind, ...] = ()
    """Empty stands for all that the data allow."""
    amplitude: tuple[Share, Share] = (0.03, 0.3)
    """Range of the relative change in training."""
    kappa: Annotated[float, Bounds(above=1, below=math.inf)] = 2.0
    """An adversarial change multiplies the mean squared residual at least by this."""
    adversarial_steps: NonNegativeInt = 1
    """Gradient steps up the model's logit."""
    adversarial_amplitude: tuple[Share, Share] = (0.003, 0.5)
    """Smallest and largest relative change tried."""
    smoothness: Share = 0.25
    """Wave number at which adversarial changes fade out, as a share of the grid's highest."""
    parameter_distance: NonNegative = 0.5
    """Smallest distance of wrong parameters (root of the sum of squares, standardised); if none are
    that far, the most distant ones are used."""

    def __post_init__(self) -> None:
        check(self)
        if len(set(self.kinds)) != len(self.kinds):
            raise ValueError(f"expected kinds that differ, found {self.kinds}")
        for name in ("amplitude", "adversarial_amplitude"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the lower end first, found {(low, high)}")


def required_history(spec: FieldSpec) -> int:
    """Frames that a window must have before it can violate its equation."""
    return 1 if spec.family is None else find_family(spec.family).required_frames(spec.channels)


class Negatives:
    """Makes negatives of the windows of one data set.

    Args:
        config: Which negatives, and how far from valid.
        spec: Field specification of the model's input.
        normalizer: Statistics of its channels.
        history: Frames of a window.
        parameter_table: Standardised parameters of the training trajectories.
        solid_unknown: Unknown points of a sample are its body, not gaps in a measurement.

    Raises:
        ValueError: The history is too short for the equation, or the data do not allow a kind in
            the config.
    """

    def __init__(
        self,
        config: NegativesConfig,
        spec: FieldSpec,
        normalizer: Normalizer,
        history: int,
        parameter_table: Float[Tensor, "n 16"] | None = None,
        *,
        solid_unknown: bool = False,
    ) -> None:
        needed = required_history(spec)
        if history < needed:
            raise ValueError(
                f"expected a history of at least {needed} frames to check the equation of family "
                f"{spec.family!r}, found {history}; give the model more history"
            )
        self.config, self.spec, self.normalizer, self.history = config, spec, normalizer, history
        self.channels = len(spec.channels)
        self._table = None if parameter_table is None else parameter_table.detach().clone()
        self._boundaries = BrokenBoundaries(spec, normalizer, solid_unknown=solid_unknown)
        self._omission: OmittedTerms | None = None
        self._orders = wrong_orders(history, spec) if history > 1 else None
        self.unavailable: dict[Kind, str] = self._reasons()
        """Reasons why some kinds cannot be made of these data."""
        for kind in config.kinds:
            if kind in self.unavailable:
                raise ValueError(
                    f"these data allow no negatives of kind {kind!r}: {self.unavailable[kind]}; "
                    f"leave it out of kinds"
                )
        wanted = config.kinds or KINDS
        self.kinds: tuple[Kind, ...] = tuple(k for k in wanted if k not in self.unavailable)
        """The kinds that ``draw`` uses."""
        self._makers: dict[Kind, Callable[..., Windows]] = {
            "noise": self._noise,
            "adversarial": self._adversarial,
            "shuffled": self._shuffled,
            "parameters": self._parameters,
            "boundary": self._boundary,
            "omitted": self._omitted,
        }

    def _reasons(self) -> dict[Kind, str]:
        reasons: dict[Kind, str] = {}
        family = None if self.spec.family is None else find_family(self.spec.family)
        missing = [n for n in (family.channels if family else ()) if n not in self.spec.channels]
        if family is None:
            reasons["adversarial"] = "the field spec names no PDE family, so there is no residual"
        elif missing:
            reasons["adversarial"] = f"the residual of {family.name!r} needs channels {missing}"
        if self._orders is None:
            reasons["shuffled"] = "a window of one frame has no order"
        if self._table is None or not parameters_differ(self._table):
            reasons["parameters"] = "no parameter differs between the training trajectories"
        if not self._boundaries.targets:
            reasons["boundary"] = "the grid has neither a body nor a side with a condition"
        try:
            self._omission = OmittedTerms(self.spec, self.normalizer, self.history, self._table)
        except ValueError as error:
            reasons["omitted"] = str(error)
        return reasons

    def has_amplitude(self, kind: Kind) -> bool:
        """Whether the size of the change can be chosen."""
        single = self._omission is not None and self._omission.single
        return kind in ("noise", "boundary") or (kind == "omitted" and single)

    @torch.no_grad()
    def make(
        self,
        kind: Kind,
        batch: Batch,
        model: nn.Module | None = None,
        amplitude: float | None = None,
    ) -> Windows:
        """Fields and parameters of one negative of each sample.

        Args:
            kind: One of ``KINDS`` that is not unavailable.
            batch: Valid windows with their seeds.
            model: The model to fool, with ``consistency``; only adversarial negatives need it.
            amplitude: Size of the change; drawn from the range of the config if not given.
        """
        if kind in self.unavailable:
            raise ValueError(f"no negatives of kind {kind!r}: {self.unavailable[kind]}")
        shape = (self.history * self.channels, *self.spec.grid.shape)
        if tuple(batch.x.shape[1:]) != shape:
            raise ValueError(
                f"expected windows of shape {shape} (history x channels, y, x), "
                f"found {tuple(batch.x.shape[1:])}"
            )
        if kind == "adversarial":
            return self._adversarial(batch, model)
        return self._makers[kind](batch, self._amplitude(batch, kind, amplitude))

    @torch.no_grad()
    def draw(self, batch: Batch, model: nn.Module | None = None) -> Windows:
        """One negative of each sample. The kinds alternate along the order of the epoch.

        The order is shuffled in every epoch, so a sample meets all kinds in time. The rows of a
        kind are known beforehand, so the device need not wait.
        """
        x, parameters = batch.x.clone(), batch.parameters.clone()
        for number, kind in enumerate(self.kinds):
            rows = slice((number - batch.position) % self.period, None, self.period)
            if len(batch.seeds[rows]):
                x[rows], parameters[rows] = self.make(kind, batch.map(itemgetter(rows)), model)
        return x, parameters

    @property
    def period(self) -> int:
        """Samples after which the kinds repeat."""
        return len(self.kinds)

    def _amplitude(self, batch: Batch, kind: Kind, amplitude: float | None) -> Tensor:
        low, high = self.config.amplitude if amplitude is None else (amplitude, amplitude)
        share = sample_rng.uniform(batch.seeds, f"amplitude of {kind}")
        return low * (high / low) ** share

    def _noise(self, batch: Batch, amplitude: Tensor) -> Windows:
        raw = phases.random_angles(batch.seeds, "noise", batch.x)
        angles = phases.angles_of_size(batch.x, raw, amplitude.to(batch.x.dtype))
        return phases.turned(batch.x, angles, batch.mask), batch.parameters

    def _adversarial(self, batch: Batch, model: Any) -> Windows:
        if model is None:
            raise ValueError("adversarial negatives need the model that they should fool")
        terms = WindowResidual(self.spec, self.normalizer)
        counted = terms.counted(batch.x, batch.mask)

        def residual(x: Tensor) -> Tensor:
            copies = len(x) // len(batch)
            parameters, here = batch.parameters, counted
            if copies > 1:
                parameters = parameters.repeat(copies, 1)
                here = {term: points.repeat(copies, 1, 1) for term, points in counted.items()}
            return terms.mean_squares(x, parameters, here)

        with evaluation_mode(model):
            x = attack(
                batch.x,
                batch.mask,
                batch.seeds,
                lambda x: model.consistency(x, batch.parameters, batch.mask).float(),
                residual,
                kappa=self.config.kappa,
                steps=self.config.adversarial_steps,
                amplitude=self.config.adversarial_amplitude,
                cutoff=self.config.smoothness,
            )
        return x, batch.parameters

    def _shuffled(self, batch: Batch, amplitude: Tensor) -> Windows:
        assert self._orders is not None
        self._orders = self._orders.to(batch.x.device)
        orders = self._orders[sample_rng.integer(batch.seeds, "shuffled", len(self._orders))]
        frames = batch.x.unflatten(1, (self.history, self.channels))
        rows = torch.arange(len(frames), device=frames.device)[:, None]
        return frames[rows, orders].flatten(1, 2), batch.parameters

    def _parameters(self, batch: Batch, amplitude: Tensor) -> Windows:
        assert self._table is not None
        self._table = self._table.to(batch.x.device)
        share = sample_rng.uniform(batch.seeds, "parameters")
        true, least = batch.parameters, self.config.parameter_distance
        other = other_parameters(true, self._table, share, least)
        is_same = ((other == true) | true.isnan()).all(1)
        noise, _ = self._noise(batch, self._amplitude(batch, "noise", None))
        return torch.where(is_same[:, None, None, None], noise, batch.x), other

    def _boundary(self, batch: Batch, amplitude: Tensor) -> Windows:
        addition = self._boundaries.addition(batch.mask, batch.seeds).to(batch.x.dtype)
        frames = batch.x.unflatten(1, (self.history, self.channels))
        scale = phases.scale_to(addition, frames[:, -1], batch.mask, amplitude)
        return (frames + (addition * scale)[:, None]).flatten(1, 2), batch.parameters

    def _omitted(self, batch: Batch, amplitude: Tensor) -> Windows:
        assert self._omission is not None
        frames = batch.x.unflatten(1, (self.history, self.channels))
        change = self._omission.change(frames, batch.parameters, batch.mask, batch.seeds)
        scale = phases.scale_to(change, frames[:, -1], batch.mask, amplitude)
        if not self._omission.single:
            # The term itself determines the size of the change, within bounds.
            scale = (scale * LARGEST_OMISSION / amplitude[:, None, None, None]).clamp(max=1.0)
        last = frames[:, -1] + change * scale
        return torch.cat((frames[:, :-1], last[:, None]), dim=1).flatten(1, 2), batch.parameters


ALL_ORDERS = 4
"""Histories up to this length get any other order; longer ones have two frames exchanged."""


def wrong_orders(history: int, spec: FieldSpec) -> Int[Tensor, "n h"]:
    """Orders of the frames of a window that violate its equation.

    They exclude the true order, and the reverse order if the equation allows it.
    """
    true = tuple(range(history))
    if history <= ALL_ORDERS:
        orders = list(itertools.permutations(true))
    else:
        orders = []
        for i, j in itertools.combinations(true, 2):
            exchanged = list(true)
            exchanged[i], exchanged[j] = j, i
            orders.append(tuple(exchanged))
    allowed = {true}
    if spec.family is not None and find_family(spec.family).is_reversible(spec.channels):
        allowed.add(true[::-1])
    return torch.tensor([order for order in orders if order not in allowed])


def parameters_differ(table: Float[Tensor, "n q"]) -> bool:
    """Whether any parameter has two known values."""
    if not len(table):
        return False
    low = torch.where(table.isnan(), math.inf, table).amin(0)
    high = torch.where(table.isnan(), -math.inf, table).amax(0)
    return bool((high - low > 1e-6).any())


def other_parameters(
    true: Float[Tensor, "b q"],
    table: Float[Tensor, "n q"],
    share: Float[Tensor, " b"],
    least: float,
) -> Float[Tensor, "b q"]:
    """A row of the table for each sample that differs from its parameters, NaN where unknown.

    Unknown parameters stay unknown, and known ones known. A sample without a known parameter that
    varies in the table keeps them. ``share`` in [0, 1) selects among the rows at least ``least``
    away (root of the sum of squares), or among the most distant ones.
    """
    distance = (true[:, None] - table).square().nansum(-1).sqrt()  # (b, n)
    bound = distance.amax(1, keepdim=True).clamp(max=least)
    far: Bool[Tensor, "b n"] = (distance >= bound) & (distance > 0)
    number = (share * far.sum(1)).long()
    row = (far.cumsum(1) <= number[:, None]).sum(1).clamp(max=len(table) - 1)
    other = table[row]
    return torch.where(true.isnan() | other.isnan(), true, other)
