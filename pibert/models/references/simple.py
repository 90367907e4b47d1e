"""Reference predictors: what a model must beat, none of them trained by steps.

    persistence           x_{t+s} = x_t
    training mean         x_{t+s} = m
    linear extrapolation  x_{t+s} = x_t + s (x_t - x_{t-1})
    mean advection        ``models/references/mean_advection.py``
    DMD                   ``models/references/dmd.py``

m is the mean of the training targets at every point, over the frames where the point is known; a
point that never was known has the mean of its channel, zero in standardised units.

A reference holds buffers alone. ``fit`` reads the training batches, ``state_dict`` keeps what it
found. The skip from the last frame has no meaning here: ``residual`` is False and stays so.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.models.layers import Answer, Fields, Mask, Vector
from pibert.models.stepper import Stepper, StepperConfig, checked_mask


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceConfig(StepperConfig):
    """Options of every reference predictor."""

    residual: bool = False
    """Always False: a reference says itself what it adds to the last frame."""

    def __post_init__(self) -> None:
        StepperConfig.__post_init__(self)
        if self.residual:
            raise ValueError(
                "expected residual=False, found True: a reference predictor has no skip to switch"
            )


class Reference(Stepper, ABC):
    """A predictor that is fitted in closed form, or not at all; it has no weights to train."""

    needs_fit: ClassVar[bool] = True
    """Whether it can only predict after ``fit``."""
    fitted: Tensor

    def __init__(self, config: ReferenceConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.register_buffer("fitted", torch.tensor(False))
        # Next to the buffer, as reading that would wait for the device.
        self._is_fitted = False
        self.register_load_state_dict_post_hook(_recall_fit)

    @abstractmethod
    def fit(self, batches: Iterable[Batch], normalizer: Normalizer) -> None:
        """Learn what there is to learn from the training batches, in at most two passes.

        Args:
            batches: To be iterated anew for every pass, such as a loader or a list.
            normalizer: What standardised them.
        """

    @abstractmethod
    def ahead(
        self, x: Float[Tensor, "b c y x"], known: Bool[Tensor, "*b y x"] | None
    ) -> Float[Tensor, "b k y x"]:
        """The next frames.

        Args:
            x: Checked, zero at unknown points.
            known: (y, x) or (b, 1, y, x); None: everything is.
        """

    def forward(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Answer:
        """The next frames, standardised as the input; arguments as of every model."""
        if self.needs_fit and not self._is_fitted:
            raise ValueError(
                f"{type(self).__name__} was expected to be fitted, found that it is not; call "
                "fit with the training batches or load the state of a fitted one"
            )
        x = self.prepared(x, parameters, mask)
        if self.needs_fit and tuple(x.shape[-2:]) != self.spec.grid.shape:
            raise ValueError(
                f"expected fields on the grid that it was fitted on, {self.spec.grid.shape}, "
                f"found {tuple(x.shape[-2:])}"
            )
        known = None if mask is None else checked_mask(mask, x)
        # Full precision under autocast: a reference has nothing to gain from less.
        with torch.autocast(x.device.type, enabled=False):
            return self.ahead(x, known)

    def _mark_fitted(self) -> None:
        self.fitted.fill_(True)
        self._is_fitted = True


def _recall_fit(reference: Reference, _: Any) -> None:
    reference._is_fitted = bool(reference.fitted)


class Persistence(Reference):
    """The newest frame again."""

    needs_fit = False

    def fit(self, batches: Iterable[Batch], normalizer: Normalizer) -> None:
        """Nothing to learn."""
        self._mark_fitted()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        return self.last_frame(x)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearExtrapolationConfig(ReferenceConfig):
    """Options of ``LinearExtrapolation``."""

    history: int = 2
    """Frames in; the newest two are used."""

    def __post_init__(self) -> None:
        ReferenceConfig.__post_init__(self)
        if self.history < 2:
            raise ValueError(
                f"linear extrapolation needs a history of 2 or more frames, found {self.history}"
            )


class LinearExtrapolation(Reference):
    """The straight line through the newest two frames."""

    needs_fit = False

    def fit(self, batches: Iterable[Batch], normalizer: Normalizer) -> None:
        """Nothing to learn."""
        self._mark_fitted()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        before, last = x.unflatten(1, (self.config.history, -1))[:, -2:].unbind(1)
        step = last - before
        return torch.cat([last + s * step for s in range(1, self.config.horizon + 1)], dim=1)


class AboutTheMean(Reference):
    """A reference that knows the mean field."""

    mean: Float[Tensor, "c y x"]

    def __init__(self, config: ReferenceConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.register_buffer("mean", torch.zeros(len(spec.channels), *spec.grid.shape))

    def _fit_mean(self, batches: Iterable[Batch]) -> Bool[Tensor, "y x"]:
        """Fit the mean; returns the points that were known at least once."""
        total = torch.zeros_like(self.mean, dtype=torch.float64)
        count = torch.zeros_like(total[0])
        for batch in self._checked(batches):
            seen = batch.target_mask[:, :, None]
            total += torch.where(seen, batch.y, 0.0).sum((0, 1), dtype=torch.float64)
            count += batch.target_mask.sum((0, 1))
        if not bool(count.any()):
            raise ValueError("expected training batches with known targets, found none")
        self.mean.copy_(total / count.clamp(min=1))
        return count > 0

    def _checked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches where the buffers are, their shapes compared with the spec's."""
        frame = tuple(self.mean.shape)
        for batch in batches:
            if tuple(batch.y.shape[2:]) != frame or batch.x.shape[1] != self.in_channels:
                raise ValueError(
                    f"expected batches of {self.config.history} frames in and frames of shape "
                    f"{frame} out, found inputs {tuple(batch.x.shape)} and targets "
                    f"{tuple(batch.y.shape)}"
                )
            yield batch.to(self.mean.device)

    def _fluctuation(self, x: Tensor, known: Tensor | None) -> Tensor:
        """Of one frame or several folded into channels: x - m, zero at unknown points."""
        frames = x.shape[1] // len(self.mean)
        deviation = x - self.mean.repeat(frames, 1, 1)
        return deviation if known is None else torch.where(known, deviation, 0.0)


class TrainingMean(AboutTheMean):
    """The mean of the training targets, whatever the input."""

    def fit(self, batches: Iterable[Batch], normalizer: Normalizer) -> None:
        self._fit_mean(batches)
        self._mark_fitted()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        return self.mean.to(x.dtype).repeat(x.shape[0], self.config.horizon, 1, 1)


PRESETS: dict[str, dict[str, ReferenceConfig]] = {
    "persistence": {"base": ReferenceConfig()},
    "training-mean": {"base": ReferenceConfig()},
    "linear-extrapolation": {"base": LinearExtrapolationConfig()},
}
"""Named configurations of each reference in this file."""
