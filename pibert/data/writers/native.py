"""The package's own format (docs/data-format.md).

That format holds the number of frames in front of them, so they wait in a spool until it is known:
while the file is written it takes its space on the disk twice.

Inside a body and where nothing is known values are NaN, as in the other formats. Ends of error
bars are further channels. Points without bars are not valid then: what is valid is finite in all
channels.
"""

from dataclasses import replace

import torch

from pibert.data import format as native
from pibert.data.writers.frames import Block, FrameWriter
from pibert.data.writers.spool import Spool
from pibert.fields import FieldSpec, Trajectory


class NativeWriter(FrameWriter):
    """A file of one trajectory."""

    _fields: Spool | None = None
    _valid: Spool | None = None
    _filled: Spool | None = None

    @property
    def _spec(self) -> FieldSpec:
        """Of all that is written."""
        spec, bars = self.about.spec, self.about.bar_units
        channels, units = (*spec.channels, *bars), (*spec.units, *bars.values())
        return replace(spec, channels=channels, units=units)

    def _begin(self) -> None:
        spec, folder = self._spec, self.path.parent
        # Not as tensors: thousands of small ones would keep the heap from being used again.
        self._times: list[float] = []
        self._gaps = False
        self._fields = Spool(folder, (len(spec.channels), *spec.grid.shape))
        self._valid = Spool(folder, spec.grid.shape, torch.bool)
        if self.about.marks_filled:
            self._filled = Spool(folder, spec.grid.shape, torch.bool)

    def _append(self, block: Block) -> None:
        assert self._fields is not None and self._valid is not None
        self._times.extend(block.time.tolist())
        fields, known = block.masked, block.known
        if self.about.bars is not None:
            ends = block.bars
            fields = torch.cat((fields, ends), dim=1)
            known = known & ends.isfinite().all(1)
        self._fields.append(fields)
        valid = known | self.about.body
        self._valid.append(valid)
        self._gaps = self._gaps or not bool(valid.all())
        if self._filled is not None:
            assert block.filled is not None
            self._filled.append(block.filled)

    def _finish(self) -> None:
        about = self.about
        assert self._fields is not None
        trajectory = Trajectory(
            name=about.name,
            states=self._fields,
            time=torch.tensor(self._times, dtype=torch.float64),
            spec=self._spec,
            parameters=about.parameters,
            valid=self._valid if self._gaps else None,
            filled=self._filled,
            source=about.source,
            local=about.local,
            length_unit=about.length_unit,
            time_unit=about.time_unit,
        )
        native.write(self.path, [trajectory])

    def _discard(self) -> None:
        for spool in (self._fields, self._valid, self._filled):
            if spool is not None:
                spool.close()
