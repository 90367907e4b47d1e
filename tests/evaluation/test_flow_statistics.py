"""Statistics of recordings against values worked out by hand."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from pibert.cli import app
from pibert.data.format import Reader, write
from pibert.data.readers import open_recordings
from pibert.evaluation.flow_statistics import StatsOptions, flow_statistics
from pibert.evaluation.modes import segments
from pibert.evaluation.temporal import integral_time, power_density
from pibert.fields import Grid, Trajectory
from tests.data.helpers import make_trajectory
from tests.helpers import assert_close, refused

DT, FREQUENCY, FRAMES = 0.05, 0.625, 256  # 32 frames and 8 periods
GRID = Grid((10, 14), dx=0.1, dy=0.15, origin=(-0.5, 0.2))


def shedding(noise: float = 0.0) -> Tensor:
    """A mean shear flow and a wave that travels along x, (t, 2, y, x)."""
    x, y = GRID.coordinates(torch.float64)
    time = DT * torch.arange(FRAMES, dtype=torch.float64)[:, None, None]
    phase = 2 * math.pi * (x / 1.4 - FREQUENCY * time)
    fields = torch.stack((2 * y + 0.2 * phase.sin(), 0.4 * phase.cos() + 0 * y), dim=1)
    generator = torch.Generator().manual_seed(0)
    return fields + noise * torch.randn(fields.shape, generator=generator).double()


def recording(states: Tensor | None = None, **changes: Any) -> Trajectory:
    base = make_trajectory(states=(shedding() if states is None else states).float(), dt=DT)
    return replace(base, spec=replace(base.spec, grid=GRID), **changes)


def test_moments_are_those_of_the_wave() -> None:
    found = flow_statistics(recording())
    _, y = GRID.coordinates(torch.float64)
    assert_close(found.mean, torch.stack((2 * y, 0 * y)), rtol=1e-5)
    assert_close(found.rms[0], torch.full(GRID.shape, 0.2 / math.sqrt(2)).double(), rtol=1e-5)
    assert_close(found.stress[1, 1], torch.full(GRID.shape, 0.08).double(), rtol=1e-5)
    # u' and v' are a quarter of a period apart.
    assert float(found.stress[0, 1].abs().max()) < 1e-6
    assert_close(found.tke, (found.stress[0, 0] + found.stress[1, 1]) / 2, rtol=1e-12)
    assert_close(found.vorticity, torch.full(GRID.shape, -2.0).double(), rtol=1e-4)
    assert found.gradient_unit == "1/s" and found.frequency_unit == "1/s"
    assert "dominant frequency" in repr(found)


def test_spurious_vectors_are_reported_with_a_remedy() -> None:
    states = shedding(noise=0.002)
    assert not any("pibert fill" in note for note in flow_statistics(recording(states)).notes)
    states[::3, :, 3::5, 2::6] += 3.0
    assert any("pibert fill" in note for note in flow_statistics(recording(states)).notes)


def test_frequency_phases_and_modes_are_those_of_the_wave() -> None:
    found = flow_statistics(recording(), StatsOptions(phases=4))
    assert found.spectra is not None and found.phase is not None
    assert found.spectra.dominant == pytest.approx(FREQUENCY, rel=1e-3)
    assert found.phase.period == pytest.approx(1 / FREQUENCY, rel=1e-3)
    assert found.pod is not None and found.dmd is not None
    # u and v are a sine and a cosine of the same phase: two modes of equal energy.
    assert_close(found.pod.share[:2], torch.tensor([0.5, 0.5]).double(), rtol=1e-3)
    assert float(found.dmd.frequency[0]) == pytest.approx(FREQUENCY, rel=1e-4)
    assert abs(float(found.dmd.growth[0])) < 1e-4
    # Rms of the whole fluctuation over time and field.
    rms = math.sqrt((0.04 + 0.16) / 2)
    assert float(found.dmd.amplitude[0]) == pytest.approx(rms, rel=1e-3)


def test_phase_averages_follow_a_given_period_and_count_their_frames() -> None:
    found = flow_statistics(recording(), StatsOptions(period=1.6, phases=32))
    assert found.phase is not None
    assert_close(found.phase.mean, shedding()[:32], rtol=1e-5)
    assert torch.equal(found.phase.count, torch.full((32, *GRID.shape), 8.0).double())
    with refused("--period 99", "12.75"):
        flow_statistics(recording(), StatsOptions(period=99.0))


def test_a_trend_is_not_a_dominant_frequency() -> None:
    found = flow_statistics(recording(shedding()[:40]))
    assert found.spectra is not None and found.spectra.dominant is None  # 1.25 periods
    assert found.phase is None
    assert any("no frequency dominates" in note for note in found.notes)


def test_broadband_fluctuations_of_a_short_record_have_no_dominant_frequency() -> None:
    generator = torch.Generator().manual_seed(0)
    for frames, time in ((64, 2), (128, 8)):  # correlated over this many frames
        named = 0
        for _ in range(6):
            fields = torch.randn(frames, 2, 3, 3, generator=generator)
            for i in range(1, frames):
                keep = math.exp(-1 / time)
                fields[i] = keep * fields[i - 1] + math.sqrt(1 - keep**2) * fields[i]
            spread = torch.nn.functional.interpolate(fields, GRID.shape, mode="bilinear")
            found = flow_statistics(recording(spread))
            assert found.spectra is not None
            named += found.spectra.dominant is not None
        assert named <= 1, (frames, time)  # most, where slower peaks count


def test_a_longer_segment_resolves_a_slower_frequency() -> None:
    short = recording(shedding()[:88])  # 2.75 periods
    found = flow_statistics(short)
    assert found.spectra is not None and found.spectra.dominant is None
    assert any("2.7 periods" in note and "--segment" in note for note in found.notes)
    longer = flow_statistics(short, StatsOptions(segment=44))
    assert longer.spectra is not None
    assert longer.spectra.dominant == pytest.approx(FREQUENCY, rel=0.03)


def test_short_recordings_and_frames_without_a_vector_get_notes() -> None:
    notes = flow_statistics(recording(shedding()[:5])).notes
    assert any("spectra need 8 frames or more, found 5" in note for note in notes)
    valid = torch.ones(16, *GRID.shape, dtype=torch.bool)
    valid[3:5] = False
    notes = flow_statistics(recording(shedding()[:16], valid=valid)).notes
    (note,) = (note for note in notes if "POD" in note)
    assert "2 of 16 frames" in note and "--frames" in note and "fill" not in note


def test_spectra_obey_parseval() -> None:
    found = flow_statistics(recording(shedding(noise=0.1)), StatsOptions(probes=((0.1, 0.5),)))
    assert found.spectra is not None and found.spectra.probes == ((2, 6),)
    series = shedding(noise=0.1).float()[:, :, 2, 6].double()
    parts = segments(series, 64)
    window = torch.hann_window(64, dtype=torch.float64)[:, None].square()
    energy = [(window * (part - part.mean(0)).square()).sum(0) / window.sum() for part in parts]
    total = found.spectra.power[:, 0].sum(0) * found.spectra.frequency[1]
    assert_close(total, torch.stack(energy).mean(0), rtol=1e-6)
    frequency, power = power_density(series, DT)
    assert_close((power.sum(0) * frequency[1])[1], series[:, 1].var(), rtol=0.1)


def test_gaps_and_filled_vectors_do_not_count_and_modes_need_complete_fields() -> None:
    states, valid = shedding(), torch.ones(FRAMES, *GRID.shape, dtype=torch.bool)
    valid[10:20, 3, 4] = False
    states[10:20, :, 3, 4] = 1e6
    gappy = flow_statistics(recording(states, valid=valid))
    assert float(gappy.count[3, 4]) == FRAMES - 10 and float(gappy.count[0, 0]) == FRAMES
    kept = torch.cat((shedding()[:10], shedding()[20:]))[:, :, 3, 4]
    assert_close(gappy.mean[:, 3, 4], kept.mean(0), rtol=1e-5)
    assert_close(gappy.stress[1, 1, 3, 4], kept[:, 1].var(correction=0), rtol=1e-5)
    assert gappy.pod is None and any("pibert fill" in note for note in gappy.notes)
    # Filled values complete the fields of modes, but are no measurements.
    filled = flow_statistics(recording(filled=~valid))
    assert filled.pod is not None and torch.equal(filled.count, gappy.count)
    masked = flow_statistics(recording(valid=valid.all(0)))  # never known: left out
    assert masked.pod is not None and not bool(masked.points[3, 4])
    assert bool(masked.mean[:, 3, 4].isnan().all())
    moving = flow_statistics(recording(body=~valid))  # filling does not fill bodies
    assert moving.pod is None
    assert [note for note in moving.notes if "body" in note and "pibert fill" not in note]


def test_the_error_of_the_mean_is_that_of_repeated_recordings() -> None:
    generator = torch.Generator().manual_seed(2)
    memory, count = 0.8, 4000
    noise = torch.randn(count, 200, generator=generator, dtype=torch.float64)
    series = noise.clone()
    for frame in range(1, count):
        series[frame] = memory * series[frame - 1] + math.sqrt(1 - memory**2) * noise[frame]
    # Autocorrelation 0.8^k: 0.5 + 0.8 + 0.64 + ... = 4.5 frames.
    scale = integral_time(series)
    assert scale == pytest.approx(4.5, rel=0.05)
    expected = float(series.std() / math.sqrt(count / (2 * 4.5)))
    assert float(series.mean(0).std()) == pytest.approx(expected, rel=0.15)
    found = flow_statistics(
        recording(
            series.view(1, count, 200)[0, :512, :140].reshape(512, 1, 10, 14).expand(-1, 2, -1, -1)
        )
    )
    assert found.independent["u"] == pytest.approx(512 / 9, rel=0.15)
    assert found.independent["u"] is not None
    assert_close(found.error[0], found.rms[0] / math.sqrt(found.independent["u"]), rtol=1e-6)


def test_recordings_without_statistics_are_refused() -> None:
    with refused("two frames", "pattern"):
        flow_statistics(recording(shedding()[:1]))
    scalar = make_trajectory(channels=("T", "p"))
    with refused("velocity"):
        flow_statistics(replace(scalar, spec=replace(scalar.spec, family=None)))
    with refused("probe at 9,9", "x from -0.5 to 0.8"):
        flow_statistics(recording(), StatsOptions(probes=((9.0, 9.0),)))
    time = DT * torch.arange(FRAMES).double()
    time[100:] += 1.23
    uneven = replace(recording(), time=time, spec=replace(recording().spec, dt=None))
    found = flow_statistics(uneven)
    assert found.dmd is None and found.pod is not None and "equally spaced" in found.notes[0]


def test_the_command_writes_fields_tables_and_pictures_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "flow.h5", [recording()])
    out = tmp_path / "stats"
    arguments = ["stats", str(tmp_path / "flow.h5"), "--out", str(out), "--modes", "2"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["dominant_frequency"] == pytest.approx(FREQUENCY, rel=1e-3)
    assert sorted(found["written"]) == sorted(str(file) for file in out.iterdir())
    pictures = {file.stem for file in out.glob("*.png")}
    assert pictures == {"mean", "fluctuations", "spectra", "phases", "pod", "spod", "dmd"}
    (moments,) = Reader(out / "moments.h5")
    assert moments.spec.channels[:2] == ("count", "tke")
    where = moments.spec.channels.index("vv")
    assert_close(moments.read()[0, where], torch.full(GRID.shape, 0.08), rtol=1e-5)
    (modes,) = Reader(out / "dmd_modes.h5")
    assert modes.spec.channels == ("u", "v", "u_imag", "v_imag")
    with (out / "pod.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["cumulative"]) == pytest.approx(1.0, rel=1e-4)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2 and "--overwrite" in again.output
    (out / "mean.png").unlink()
    monkeypatch.setattr(
        "pibert.report.flow_statistics.draw_statistics",
        lambda folder, *_: (folder / "mean.png").touch(),  # drawing takes most of the time
    )
    as_netcdf = CliRunner().invoke(app, [*arguments, "--overwrite", "--format", "nc"])
    assert as_netcdf.exit_code == 0 and (out / "mean.png").exists()
    assert not (out / "moments.h5").exists()
    assert open_recordings(out / "moments.nc")[0].spec.channels == moments.spec.channels
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    arguments[3] = str(tmp_path / "other")
    refusal = CliRunner().invoke(app, [*arguments, "--overwrite"])
    assert refusal.exit_code == 2 and (tmp_path / "other" / "thesis.tex").exists()
