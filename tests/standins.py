"""Small files that stand for what the pages of the documentation speak of."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import pibert
from pibert.data.format import Reader, write
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.data.resample import represent
from pibert.data.splits import Shares
from pibert.experiments import run
from pibert.experiments.calibration import calibrate_run
from pibert.experiments.experiment import DataConfig, Experiment, ModelConfig
from pibert.fields import Normalizer, Trajectory
from pibert.inference import save_model
from pibert.inference.calibration import CalibrationSettings
from tests.data.helpers import make_trajectory
from tests.documents import ROOT, blocks
from tests.helpers import tiny_model
from tests.inference.flows import flows
from tests.lookalikes.openfoam import write_case
from tests.lookalikes.piv import write_openpiv
from tests.lookalikes.realpdebench import write_root
from tests.lookalikes.vtk import points_of, write_collection, write_xml

SHORT_WAKES: dict[str, Any] = {
    **{"samples": 6, "group": 6, "frames": 12, "warm_up": 1.0, "speed": 0.15, "domain": [8, 6]},
    **{"upstream": 3.0, "view": [32, 36], "body": [15.5, 12.5, 8.0]},
}
"""Changes of a recipe of wakes that make it short."""


def trained_model(folder: Path) -> None:
    """A model that steps and fills, and fields with a gap for it."""
    trained = {"forward": True, "reconstruct": True}
    save_model(folder / "runs/wake", tiny_model(), Normalizer.identity(2), trained=trained)
    fields = np.random.default_rng(0).normal(size=(3, 1, 2, 16, 16))
    fields[1, 0, :, 5:8, 2] = np.nan
    np.save(folder / "fields.npy", fields)


def calibrated_model(folder: Path) -> None:
    """A run with a calibration of six lead times, and windows for it."""
    path = folder / "waves.h5"
    write(path, flows(24))
    shares = Shares(train=0.2, valid=0.1, calibration=0.5)
    experiment = Experiment(
        data=DataConfig(path=str(path), shares=shares), model=ModelConfig(name="persistence")
    )
    run(experiment, folder / "runs/wake")
    calibrate_run(folder / "runs/wake", CalibrationSettings(leads=6, starts=3))
    with Reader(path) as reader:
        np.save(folder / "fields.npy", reader[0].read(slice(0, 4))[:, None].numpy())


def wakes(folder: Path) -> None:
    names = [f"{i}" for i in range(10)]
    made = [make_trajectory(n, channels=("u", "v", "p"), re=100.0 + int(n)) for n in names]
    write(folder / "wake.h5", made)


def vectors(x: np.ndarray, y: np.ndarray, t: float, speed: float = 1.0) -> tuple[np.ndarray, ...]:
    """A travelling wave without divergence on a stream along x."""
    angle = 2 * x + 3 * y - 8 * speed * t
    return speed * (1 + 0.3 * np.cos(angle)), -0.2 * speed * np.cos(angle)


def piv_recording(folder: Path, frames: int = 120) -> None:
    """A folder of text files in pixels with flagged vectors: 20 px in 1 ms are 1 m/s."""
    x, y = np.meshgrid(20.0 * np.arange(20), 16.0 * np.arange(16))
    (folder / "run1").mkdir()
    for number in range(frames):
        u, v = (20 * component for component in vectors(x / 200, y / 200, 0.002 * number))
        flags = np.zeros_like(u)
        flags[4, number % 20] = 1
        field = {"x": x, "y": y, "u": u, "v": v}
        write_openpiv(folder / "run1" / f"B{number:04}.txt", field, flags)


def cfd_cases(folder: Path, frames: int = 24) -> None:
    """OpenFOAM cases and a VTK collection of the same kind of flow; more of them converted."""
    axes = (0.1 * np.arange(16), 0.1 * np.arange(12), np.array([0.5]))
    points = points_of(axes)
    times = [f"{0.05 * number:g}" for number in range(frames)]

    def at(time: str, speed: float) -> np.ndarray:
        u, v = vectors(points[:, 0], points[:, 1], float(time), speed)
        return np.stack((u, v, 0 * u), -1)

    for number in (100, 120, 150, 180):
        states = {time: at(time, number / 100) for time in times}
        case = folder / f"cases/re{number}"
        write_case(case, axes[0], axes[1], states)
        if number in (120, 180):
            hints = Hints(parameters={"Re": float(number)})
            whole = open_recordings(case, hints=hints)[0]
            write(folder / f"re{number}.h5", [represent(whole, channels=("u", "v"))])
    for number, time in enumerate(times):
        values = at(time, 2.0).reshape(1, 12, 16, 3)
        write_xml(folder / f"a{number}.vti", axes, {"U": values}, form="raw")
    write_collection(folder / "results.pvd", {float(t): f"a{i}.vti" for i, t in enumerate(times)})


def realpdebench(folder: Path) -> None:
    write_root(folder / "data/realpdebench", frames=44)


def flow_at(reynolds: float, frames: int = 24) -> Trajectory:
    """A travelling wave whose speed follows its Reynolds number."""
    x, y = np.meshgrid(0.1 * np.arange(20), 0.1 * np.arange(16))
    states = [vectors(x, y, 0.05 * number, reynolds / 100) for number in range(frames)]
    array = np.stack(states).astype("float32")
    hints: dict[str, Any] = {"dx": 0.1, "dy": 0.1, "dt": 0.05, "unit": "m/s", "length_unit": "m"}
    hints |= {"parameters": {"Re": reynolds}, "family": "incompressible", "channels": ("u", "v")}
    return pibert.flow(array, name=f"re{reynolds:g}", **hints)[0]


def one_recording(folder: Path) -> None:
    write(folder / "run.h5", [flow_at(100, frames=140)])
    shipped = "pibert/weights/cylinder-mr"
    (folder / shipped).mkdir(parents=True)
    shutil.copy(ROOT / shipped / "sample.h5", folder / shipped)


def flows_at_reynolds_numbers(folder: Path) -> None:
    write(folder / "flows.h5", [flow_at(reynolds) for reynolds in range(100, 500, 40)])


def cookbook(folder: Path) -> None:
    """PIV text, arrays, an image, flows by Reynolds number, and files of the tutorials."""
    piv_recording(folder, frames=60)
    u = np.random.default_rng(0).normal(size=(4, 16, 20))
    np.savez(folder / "fields.npz", Vx=u, Vy=-u, x=2.0 * np.arange(20), y=2.0 * np.arange(16))
    image = np.zeros((16, 20), dtype=np.uint8)
    image[:3, :4] = 255
    Image.fromarray(image).save(folder / "shadow.png")
    scale = 0.05e-3 * 20, 0.05e-3 * 16
    for reynolds in (100, 150, 200, 250, 350, 400, 450, 500, 550):
        flow = flow_at(reynolds, frames=60)
        grid = replace(flow.spec.grid, dx=scale[0], dy=scale[1])
        spec = replace(flow.spec, grid=grid, dt=0.002)
        time = 0.002 * torch.arange(60, dtype=torch.float64)
        write(folder / f"re{reynolds}.h5", [replace(flow, spec=spec, time=time)])
    for page, kind in (("compare", "toml"), ("new-model", "python")):
        text = next(b.text for b in blocks(f"docs/tutorials/{page}.md") if b.kind == kind)
        (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
