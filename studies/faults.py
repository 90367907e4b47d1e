"""Faults that windows of a flow may have on their way to a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pibert.fields import FieldSpec, Normalizer
from pibert.inference.windows import RecordedWindows


@dataclass(frozen=True, eq=False)
class Stretch:
    """Sound windows of u and v, with the frame that follows each."""

    given: RecordedWindows
    spec: FieldSpec
    normalizer: Normalizer

    def with_fields(self, fields: Tensor) -> "Stretch":
        return replace(self, given=replace(self.given, fields=fields))

    @property
    def fields(self) -> Tensor:
        return self.given.fields.nan_to_num(0.0)  # inside a body, which flips move into the flow


Make = Callable[[Stretch, torch.Generator], Stretch]


def scaled(factor: float) -> Make:
    return lambda s, _: s.with_fields(s.fields * factor)


def flipped(axis: int, channel: int | None) -> Make:
    """Mirrored along an axis, with the sign of a channel or without."""

    def make(s: Stretch, _: torch.Generator) -> Stretch:
        fields = s.fields.flip(axis).clone()
        if channel is not None:
            fields[:, :, channel] *= -1
        return s.with_fields(fields)

    return make


def negated(channel: int) -> Make:
    def make(s: Stretch, _: torch.Generator) -> Stretch:
        fields = s.fields.clone()
        fields[:, :, channel] *= -1
        return s.with_fields(fields)

    return make


def swapped(s: Stretch, _: torch.Generator) -> Stretch:
    return s.with_fields(s.fields.flip(2))


def transposed(s: Stretch, _: torch.Generator) -> Stretch:
    """Rows and columns exchanged, then brought to the grid: as they are they would not fit it."""
    turned = s.fields.transpose(-1, -2)
    fields = F.interpolate(turned.flatten(0, 1), size=s.fields.shape[-2:], mode="bilinear")
    return s.with_fields(fields.unflatten(0, turned.shape[:2]))


def outliers(share: float) -> Make:
    """Spurious vectors: any value within three deviations of the mean, as a wrong peak gives."""

    def make(s: Stretch, generator: torch.Generator) -> Stretch:
        fields = s.fields
        shape = (*fields.shape[:2], 1, *fields.shape[3:])
        hit = torch.rand(shape, generator=generator) < share
        wrong = s.normalizer.invert(6 * torch.rand(fields.shape, generator=generator) - 3)
        return s.with_fields(torch.where(hit, wrong, fields))

    return make


def one_outlier(s: Stretch, generator: torch.Generator) -> Stretch:
    """A single spurious vector in the newest frame, at a known point."""
    chance = torch.rand(s.given.seen.shape, generator=generator) * s.given.seen
    hit = chance == chance.amax((-2, -1), keepdim=True)
    fields = s.fields.clone()
    wrong = s.normalizer.invert(6 * torch.rand(fields[:, -1].shape, generator=generator) - 3)
    fields[:, -1] = torch.where(hit[:, None], wrong, fields[:, -1])
    return s.with_fields(fields)


def noisy(share: float) -> Make:
    """White noise, as a share of each channel's deviation."""

    def make(s: Stretch, generator: torch.Generator) -> Stretch:
        z = s.normalizer.apply(s.fields)
        noise = torch.randn(z.shape, generator=generator)
        return s.with_fields(s.normalizer.invert(z + share * noise))

    return make


def wider_step(s: Stretch, _: torch.Generator) -> Stretch:
    """Every second frame: the newest given frame is the one after it."""
    later = torch.cat((s.fields, s.given.truth[:, :1].nan_to_num(0.0)), dim=1)
    return s.with_fields(later[:, [-3, -1]])


def backwards(s: Stretch, _: torch.Generator) -> Stretch:
    return s.with_fields(s.fields.flip(1))


def frozen(s: Stretch, _: torch.Generator) -> Stretch:
    return s.with_fields(s.fields[:, -1:].expand(s.fields.shape))


def wrong_reynolds(factor: float) -> Make:
    """The right fields with a wrong Reynolds number."""
    return lambda s, _: restated(s, factor * s.given.parameters["Re"])


def restated(s: Stretch, reynolds: float | Tensor) -> Stretch:
    """Return the same fields with another stated Reynolds number."""
    values = torch.as_tensor(reynolds).expand(len(s.given.fields)).float()
    parameters = s.given.parameters | {"Re": values}
    encoded = s.spec.encode_parameters(parameters)
    return replace(s, given=replace(s.given, parameters=parameters, encoded=encoded))


FAULTS: dict[str, tuple[str, Make]] = {
    "x 1000 (mm/s for m/s)": ("units", scaled(1000.0)),
    "x 0.1": ("units", scaled(0.1)),
    "x 1.1": ("units", scaled(1.1)),
    "x 1.02": ("units", scaled(1.02)),
    "y flipped, sign of v kept": ("axes and signs", flipped(-2, None)),
    "y flipped with the sign of v": ("axes and signs", flipped(-2, 1)),
    "x flipped, sign of u kept": ("axes and signs", flipped(-1, None)),
    "x flipped with the sign of u": ("axes and signs", flipped(-1, 0)),
    "u and v swapped": ("axes and signs", swapped),
    "transposed": ("axes and signs", transposed),
    "sign of v": ("axes and signs", negated(1)),
    "sign of u": ("axes and signs", negated(0)),
    "one outlier": ("noise and outliers", one_outlier),
    "1 % outliers": ("noise and outliers", outliers(0.01)),
    "5 % outliers": ("noise and outliers", outliers(0.05)),
    "noise 0.3 %": ("noise and outliers", noisy(0.003)),
    "noise 1 %": ("noise and outliers", noisy(0.01)),
    "noise 5 %": ("noise and outliers", noisy(0.05)),
    "noise 10 %": ("noise and outliers", noisy(0.1)),
    "every second frame": ("time", wider_step),
    "backwards": ("time", backwards),
    "the same frame twice": ("time", frozen),
    "Re stated 10 % too high": ("parameters", wrong_reynolds(1.1)),
    "Re stated twice as high": ("parameters", wrong_reynolds(2.0)),
}
"""Kind and maker, by name."""

OTHER_FLOWS: dict[str, tuple[tuple[float, float], float | None]] = {
    "wakes at Re 30 to 45": ((30.0, 45.0), None),
    "wakes at Re 260 to 400": ((260.0, 400.0), None),
    "wakes at Re 205 to 230": ((205.0, 230.0), None),
    "wakes at Re 30 to 45, stated as 140": ((30.0, 45.0), 140.0),
    "wakes at Re 260 to 400, stated as 140": ((260.0, 400.0), 140.0),
}
"""Reynolds numbers to simulate, and the one that is stated instead, by name."""
