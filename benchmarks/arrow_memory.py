"""Memory needed to read one window of a large Arrow row: this package and plain decoding.

Writes one row as RealPDEBench's measured cylinder has it (u, v and vorticity of 3990 x 64 x 128 in
float32, 0.39 GB) into a temporary folder. Then fresh processes read a window of 40 frames of u and
v: through the package, and by decoding the row to Python objects, as a loader that takes rows does.
Each reads a small row first, so that code and libraries are in memory; then the growth counts. The
peak is the kernel's VmHWM, reset before the read. At its end the anonymous part (allocated) and the
file part (pages of the memory map, which the kernel may take back) are listed separately.

    python benchmarks/arrow_memory.py [--frames 3990]
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.realpdebench import open_recordings

GRID = (64, 128)
WINDOW = slice(1000, 1040)


def write_row(folder: Path, frames: int) -> Path:
    import pyarrow as pa

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    row: dict[str, Any] = {"sim_id": "10031.h5"}
    row |= dict(zip(("shape_t", "shape_h", "shape_w"), (frames, *GRID), strict=True))
    for name in ("u", "v", "vo"):
        row[name] = rng.standard_normal((frames, *GRID), np.float32).tobytes()
    table = pa.table({name: [value] for name, value in row.items()})
    path = folder / "data-00000-of-00001.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return path


def read_window(path: Path) -> Any:
    return open_recordings(path)[0].read(WINDOW)


def read_row(path: Path) -> Any:
    import pyarrow as pa

    (row,) = pa.ipc.open_stream(pa.memory_map(str(path))).read_all().to_pylist()
    shape = (row["shape_t"], row["shape_h"], row["shape_w"])
    fields = [np.frombuffer(row[name], "<f4").reshape(shape) for name in ("u", "v")]
    return np.stack([field[WINDOW] for field in fields], 1)


READERS: dict[str, Callable[[Path], Any]] = {"window": read_window, "row": read_row}
GROWTH = ("peak", "anonymous", "mapped file")


def memory() -> dict[str, float]:
    """Resident memory of this process and its peak in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = ("VmRSS", "VmHWM", "RssAnon", "RssFile")
    return {name: float(fields[name].split()[0]) * 1.024e-3 for name in names}


def measure_here(reader: Callable[[Path], Any], small: Path, path: Path) -> tuple[float, ...]:
    reader(small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory()
    kept = reader(path)
    after = memory()
    del kept
    grown = [after[name] - before[name] for name in ("RssAnon", "RssFile")]
    return (after["VmHWM"] - before["VmRSS"], *grown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=3990)
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        reader, small, path = options.here
        print(*measure_here(READERS[reader], Path(small), Path(path)))
        return
    with tempfile.TemporaryDirectory() as folder:
        small = write_row(Path(folder) / "small" / "real", WINDOW.stop)
        path = write_row(Path(folder) / "cylinder" / "real", options.frames)
        window = 2 * (WINDOW.stop - WINDOW.start) * GRID[0] * GRID[1] * 4
        print(f"row: {path.stat().st_size / 1e6:.0f} MB, window: {window / 1e6:.1f} MB")
        peaks = {}
        for reader in READERS:
            command = [sys.executable, __file__, "--here", reader, str(small), str(path)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            growth = dict(zip(GROWTH, (float(v) for v in out.split()), strict=True))
            peaks[reader] = growth["peak"]
            print(f"{reader:>6}:", ", ".join(f"{k} +{v:.1f} MB" for k, v in growth.items()))
        print(f"peak of row / window: {peaks['row'] / peaks['window']:.0f}")


if __name__ == "__main__":
    main()
