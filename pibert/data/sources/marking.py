"""Recordings with bodies and masked regions marked as the user states them (``regions``).

For data that do not mark them: vectors inside a body that a program stored as zeros, reflections,
what lies outside the light sheet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.sources.recordings import Recordings, SourceError
from pibert.data.sources.regions import Region, read_region
from pibert.data.units import VELOCITY
from pibert.fields import FrameSource, Trajectory, read_mask

_BLOCK_VALUES = 1 << 22


def mark_recordings(recordings: Recordings, body: Sequence[str], mask: Sequence[str]) -> Recordings:
    """The recordings with further points marked, solid ones as body, masked ones as not valid.

    Regions are checked on the first trajectory at once, on the others when they are loaded.
    """
    if not body and not mask:
        return recordings
    load = _Marked(
        recordings,
        tuple(read_region("--body", text) for text in body),
        tuple(read_region("--mask", text) for text in mask),
    )
    remarks = load.remarks(recordings.load(recordings.names[0]))
    return replace(recordings, load=load, remarks=(*recordings.remarks, *remarks))


@dataclass(frozen=True, eq=False)
class _Marked:
    """Makes trajectories with the regions marked."""

    recordings: Recordings
    body: tuple[Region, ...]
    mask: tuple[Region, ...]
    zeros: dict[str, Tensor] = field(default_factory=dict)
    """Points that are zero in all frames, by trajectory: all frames are read for them."""

    def __call__(self, name: str) -> Trajectory:
        whole = self.recordings.load(name)
        solid, masked = self._points(whole)
        valid = _without(whole.valid, masked)
        if any(region.covers is None for region in self.mask):
            valid = _NotZero(whole, valid)
        texts = {"body": self.body, "mask": self.mask}
        told = {key: [r.text for r in regions] for key, regions in texts.items() if regions}
        return replace(
            whole,
            spec=replace(whole.spec, grid=replace(whole.spec.grid, body=None)),
            body=_joined(whole.body, solid),
            valid=valid,
            local={**whole.local, "marked": told},
        )

    def remarks(self, whole: Trajectory) -> list[str]:
        """How many points of a trajectory are marked."""
        said = []
        for what, points in zip(("body", "not valid"), self._points(whole), strict=True):
            if points is not None:
                count = int(points.sum())
                share = f"{count:,} of {points.numel():,} points ({count / points.numel():.2%})"
                said.append(f"{share} marked as {what}")
        if any(region.covers is None for region in self.mask):
            said.append("vectors that are exactly zero are marked as not valid, frame by frame")
        return said

    def _points(self, whole: Trajectory) -> tuple[Tensor | None, Tensor | None]:
        """The points of a body, and those that are masked in all frames; None: none are stated."""
        solid = self._union(whole, self.body, "--body")
        masked = self._union(whole, [r for r in self.mask if r.covers is not None], "--mask")
        marked = [points for points in (solid, masked) if points is not None]
        if marked and bool(torch.stack(marked).any(0).all()):
            raise SourceError(
                f"{self.recordings.path}: --body and --mask cover all points of trajectory "
                f"{whole.name!r}: nothing is left; check what they mark, and of an image whether "
                "its white or its dark pixels are meant (dark:IMAGE)"
            )
        return solid, masked

    def _union(self, whole: Trajectory, regions: Sequence[Region], option: str) -> Tensor | None:
        union = None
        for region in regions:
            if region.covers is None:
                if whole.name not in self.zeros:
                    self.zeros[whole.name] = zero_in_all_frames(whole)
                covered = self.zeros[whole.name]
            else:
                covered = region.covers(whole.spec.grid)
            if not bool(covered.any()):
                raise SourceError(
                    f"{self.recordings.path}: {option} {region.text} covers no point of trajectory "
                    f"{whole.name!r}: {_why_none(whole, region)}"
                )
            union = covered if union is None else union | covered
        return union


def _why_none(whole: Trajectory, region: Region) -> str:
    if region.covers is None:
        return "its velocity is nowhere exactly zero in all frames"
    grid, unit = whole.spec.grid, f" {whole.length_unit}" if whole.length_unit else ""
    (ny, nx), (x, y) = grid.shape, grid.origin
    return (
        f"its x goes from {x:g} to {x + (nx - 1) * grid.dx:g}, its y from {y:g} to "
        f"{y + (ny - 1) * grid.dy:g}{unit}; give coordinates of this recording"
    )


def zero_in_all_frames(trajectory: Trajectory) -> Bool[Tensor, "y x"]:
    """Points where every velocity component (every channel, without any) is 0 in all frames.

    A frame in which a component of the point is NaN does not count.
    """
    channels = velocity_channels(trajectory.spec.channels)
    t, _, ny, nx = trajectory.states.shape
    zero = torch.ones(ny, nx, dtype=torch.bool)
    seen = torch.zeros_like(zero)
    step = max(1, _BLOCK_VALUES // (len(channels) * ny * nx))
    for start in range(0, t, step):
        fields = trajectory.read(slice(start, min(start + step, t)), channels).cpu()
        missing, still = fields.isnan().any(1), (fields == 0).all(1)
        zero &= (missing | still).all(0)
        seen |= still.any(0)
        if not bool(zero.any()):
            break
    return zero & seen


def velocity_channels(channels: Sequence[str]) -> list[int]:
    """Places of the velocity components; of all channels where u and v are not among them."""
    wanted = VELOCITY if {"u", "v"} <= set(channels) else channels
    return [place for place, name in enumerate(channels) if name in wanted]


Mask = Tensor | FrameSource | None


def _joined(body: Mask, solid: Tensor | None) -> Mask:
    if body is None or solid is None:
        return body if solid is None else solid
    return body.cpu() | solid if isinstance(body, Tensor) else _Joined(body, solid)


def _without(valid: Mask, masked: Tensor | None) -> Mask:
    if valid is None or masked is None:
        return valid if masked is None else ~masked
    if isinstance(valid, Tensor):
        return valid.cpu() & ~masked
    return _Joined(valid, masked, excluded=True)


class _Joined:
    """A mask of many frames and one that holds for all of them: either, or the first alone."""

    def __init__(self, base: FrameSource, static: Tensor, *, excluded: bool = False) -> None:
        self.base, self.static, self.excluded = base, static, excluded

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        own = self.base.read(frames)
        return own & ~self.static if self.excluded else own | self.static


class _NotZero:
    """Valid where the vector is not exactly zero, and was valid before."""

    def __init__(self, base: Trajectory, valid: Tensor | FrameSource | None) -> None:
        self.base, self.valid = base, valid
        self.channels = velocity_channels(base.spec.channels)

    @property
    def shape(self) -> tuple[int, ...]:
        t, _, ny, nx = self.base.states.shape
        return t, ny, nx

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        moving = (self.base.read(frames, self.channels) != 0).any(1)
        return moving if self.valid is None else moving & read_mask(self.valid, frames)
