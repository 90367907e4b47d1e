"""Writer of the series of a recording or prediction as text: a line per frame, no fields."""

import csv
import io

from pibert.data.partial import replace_file
from pibert.data.writers import WRITERS
from pibert.data.writers.frames import Block, FrameWriter


class CsvWriter(FrameWriter):
    """Times, series and the ends of their prediction intervals, in columns."""

    def check(self) -> None:
        """Raise if there is no series."""
        super().check()
        if not self.about.series:
            raise ValueError(
                f"{self.path}: expected series to write, such as the displacement of a body, found "
                f"none; write fields to {', '.join(WRITERS)}"
            )

    def _begin(self) -> None:
        self._text = io.StringIO()
        self._rows = csv.writer(self._text, lineterminator="\n")
        self._rows.writerow(["time", *self.about.series])

    def _append(self, block: Block) -> None:
        columns = [block.time, *(block.series[name] for name in self.about.series)]
        rows = zip(*(column.double().tolist() for column in columns), strict=True)
        self._rows.writerows([f"{value:.9g}" for value in row] for row in rows)

    def _finish(self) -> None:
        replace_file(self.path, self._text.getvalue().encode())
