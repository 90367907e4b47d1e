"""The page with files unlike the model, refused files, and files that need hints."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pibert.data.format import write
from pibert.inference import save_model
from tests.helpers import randomise, tiny_model
from tests.inference.flows import BODY, flows, spec_of, unit
from tests.lookalikes.flow import T, X, Y, fields
from tests.serve.files import as_npy, frames, stating
from tests.serve.server_process import ServerProcess
from tests.serve.visit import Visit, browser, expect, lonely, visit

__all__ = ["browser", "lonely", "visit"]


def test_saved_files_have_the_coordinates(lonely: Visit, tmp_path: Path):
    found = lonely.table("slice")
    assert found["x"] == pytest.approx(0.6) and found["y"][[0, -1]] == pytest.approx([0.4, 1.8])
    assert lonely.table("probe")["t (D/U)"][[0, -1]] == pytest.approx([5, 6.1])
    path = tmp_path / "saved.safetensors"
    path.write_bytes(lonely.save("#save-flow"))
    with safe_open(path, "numpy") as file:
        facts = {name: json.loads(text) for name, text in file.metadata().items()}
        assert file.get_tensor("fields").shape == (10, 2, 8, 12)
        known, body = file.get_tensor("mask"), file.get_tensor("body")
    expected = {"x0": -1.5, "y0": 0.4, "dx": 0.3, "dy": 0.2, "dt": 0.1, "t0": 5.2}
    assert {name: facts[name] for name in expected} == pytest.approx(expected)
    assert (facts["length_unit"], facts["time_unit"]) == ("D", "D/U")
    assert (known == ~BODY.numpy()).all() and (body == BODY.numpy()).all()
    assert facts["source"]["kind"] == "predicted" and facts["source"]["model"] == "bare"
    # The page opens what it saved, knows that it was predicted, and where the body is.
    lonely.send("saved.safetensors", path.read_bytes())
    lonely.wait()
    expect(lonely.find("#when")).to_have_text("frame 9 of 9, t = 6.1 D/U")
    expect(lonely.find("#message")).to_be_hidden()
    expect(lonely.find("#badges .warn").first).to_contain_text("Recording: predicted by bare")
    lonely.page.mouse.move(*lonely.at(2.5, 3.5))
    expect(lonely.find("#readout")).to_contain_text("Recording (predicted) body")


FILES: dict[str, tuple[bytes, str | None, str | None]] = {
    # name: content, what the badges say, what the message says in place of a prediction
    "three channels": (
        as_npy(np.concatenate([frames(), frames()[:, :1]], 1)),
        "were taken for u, v, p",
        None,
    ),
    "one channel": (as_npy(frames()[:, :1]), None, "takes 2 channels (u, v), this has 1"),
    "one frame": (as_npy(frames(1)), None, "takes 2 frames at once, this has 1"),
    "half the step": (stating(frames(12), dt=0.05), "every 2nd frame", None),
    "other units": (stating(frames(), units=["m/s", "m/s"]), "u, v: assumed to be in no", None),
    "another grid": (as_npy(frames()[..., ::2, ::3]), "resampled", None),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_unlike_the_model_works_or_is_refused_with_the_reason(lonely: Visit, name: str):
    data, note, refused = FILES[name]
    lonely.send(f"{name}.npy", data)
    lonely.page.click("#run")
    if refused is not None:
        expect(lonely.find("#message")).to_contain_text(refused)
        return
    lonely.wait()
    expect(lonely.find("#message")).to_be_hidden()
    expect(lonely.find("#badges")).to_contain_text(re.compile(re.escape(note or ""), re.I))
    expect(lonely.find("#badges")).not_to_contain_text("pibert.")  # remedies are not in Python
    canvas = lonely.find("figure[data-panel=prediction0] canvas").first
    expect(canvas).to_have_attribute("aria-label", re.compile(r"^Prediction .*: \S+ to \S+"))


def test_filled_points_do_not_count_in_the_error(lonely: Visit, tmp_path: Path):
    filled = torch.rand(6, *BODY.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    found = []
    for wild in (False, True):
        # From the fourth frame on the rollout does not see them: they are truth or nothing.
        flow = flows(1, seed=5, frames=6)[0]
        late = filled & (torch.arange(6) >= 3)[:, None, None]
        states = torch.where(late[:, None] & torch.tensor(wild), 50.0, flow.read())
        write(tmp_path / "own.h5", [replace(flow, states=states, filled=late)])
        lonely.send("own.h5", (tmp_path / "own.h5").read_bytes())
        lonely.run()
        found.append(lonely.table("error"))
    expect(lonely.find("#badges")).to_contain_text("were filled, not measured")
    for name, values in found[0].items():
        assert found[1][name] == pytest.approx(values, rel=1e-6, nan_ok=True), name
    assert float(np.nanmax(found[1]["persistence"])) < 20


def test_a_flow_that_a_model_predicted_scores_nothing(lonely: Visit, tmp_path: Path):
    source = {"kind": "predicted", "model": "waves", "weights_sha256": "ab" * 32}
    write(tmp_path / "made.h5", [replace(flows(1, seed=5)[0], source=source)])
    lonely.send("made.h5", (tmp_path / "made.h5").read_bytes())
    lonely.wait()
    lonely.go_to(3)
    expect(lonely.find("#badges .warn").first).to_contain_text("predicted by waves (weights abab")
    expect(lonely.find("#badges")).not_to_contain_text("covers the truth")
    expect(lonely.find("[data-study=error] svg[role=img]")).to_contain_text("itself a prediction")
    expect(lonely.find("#panels")).not_to_contain_text("ruth")
    # With a measured recording all is as before.
    lonely.page.select_option("#sample", index=0)
    lonely.wait()
    expect(lonely.find("[data-study=error] .legend")).to_contain_text("persistence")


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model in m/s, without a recording."""
    spec = replace(spec_of(), units=("m/s", "m/s"), parameters=())
    torch.manual_seed(0)
    model = tiny_model("pibert", spec, width=8, heads=2, depth=1, modes=2, refine_width=4)
    folder = tmp_path_factory.mktemp("metric") / "metric"
    save_model(folder, randomise(model, 0), unit(), trained={"forward": True})
    with ServerProcess([folder, "--wait", 0]) as started:
        yield started


@pytest.fixture
def bare_page(browser: Any, metric: ServerProcess) -> Iterator[Visit]:
    page = Visit(browser, metric)
    expect(page.find("#status")).to_be_empty()
    yield page
    page.close()


def as_npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_a_moving_body_has_a_phase_portrait(lonely: Visit):
    expect(lonely.find("[data-study=portrait]")).to_be_hidden()
    motion = np.stack([np.linspace(-1.0, 1.0, 6), np.linspace(0.5, 0.25, 6)], 1)
    uniform = np.broadcast_to(motion[:, :, None, None], (6, 2, *frames().shape[2:]))
    fields = np.concatenate([frames(), uniform], 1)
    names = ["u", "v", "displacement", "velocity"]
    fields[:, :, :3, :5] = np.nan  # the state is read elsewhere
    units = ["1"] * len(names)
    lonely.send("body.safetensors", stating(fields, channels=names, units=units))
    expect(lonely.find("[data-study=portrait]")).to_be_visible()
    found = lonely.table("portrait")
    assert found["displacement truth"] == pytest.approx(motion[:, 0])
    assert found["velocity truth"] == pytest.approx(motion[:, 1])


def test_predicted_bodies_are_where_the_server_says(lonely: Visit):
    script = """async () => {
        const { Run } = await import("./runs.js");
        const recording = {
            channels: ["u"], units: ["1"], cells: 4, shape: [1, 4], dt: 1, hasSpacing: true,
            stated: {}, known: () => Uint8Array.of(0, 1, 1, 1),
        };
        const model = { name: "m", channels: ["u"], units: ["1"], dt: 1, history: 1 };
        const run = new Run(model, recording, { start: 5, steps: 2, parameters: {} });
        const prediction = { data: new Float32Array(8) };
        const known = { data: Uint8Array.of(1, 0, 1, 1, 1, 1, 0, 1) };
        run.take({ arrays: { prediction, known }, facts: {} });
        return [5, 6, 7].map((index) => [...run.known(index)]);
    }"""
    found = lonely.page.evaluate(script)
    assert found == [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]


def test_a_refused_file_clears_the_page(lonely: Visit):
    lonely.send("good.npy", as_npy(frames()))
    lonely.run()
    expect(lonely.find("#panels figure")).to_have_count(6)
    asked = len([address for address in lonely.addresses if "rollout" in address])
    lonely.send("bad.npy", b"no array at all")
    assert "400" in lonely.complaints.pop()
    expect(lonely.find("#message")).to_contain_text("bad.npy was not opened")
    # Nothing of the earlier flow is left: no fields, notes, parameters, charts or files to save.
    for there in ("#panels figure", "#badges li", "[data-parameter]"):
        expect(lonely.find(there)).to_have_count(0)
    for study in ("probe", "slice", "error", "spectrum"):
        expect(lonely.find(f"[data-save={study}]")).to_be_disabled()
    expect(lonely.find("#save-flow")).to_be_disabled()
    # Neither the button nor Enter nor another model runs the flow that was there before.
    expect(lonely.find("#run")).to_be_disabled()
    lonely.find("#steps").press("Enter")
    lonely.find("#model").dispatch_event("change")
    lonely.page.wait_for_timeout(100)
    assert len([address for address in lonely.addresses if "rollout" in address]) == asked
    # The page goes on with a recording, and with another file.
    lonely.page.select_option("#sample", index=0)
    lonely.wait()
    expect(lonely.find("#message")).to_be_hidden()
    expect(lonely.find("#panels figure")).to_have_count(6)


def test_a_hint_that_a_file_needs_can_be_given(bare_page: Visit):
    data = as_npz(**fields(), x=X, t=T)
    bare_page.send("flow.npz", data)
    assert "422" in bare_page.complaints.pop()
    expect(bare_page.find("#message")).to_contain_text("give their spacing in the same unit (dy)")
    expect(bare_page.find("#hints")).to_have_attribute("open", "")
    bare_page.find("[data-hint=dy]").fill("0.3")
    bare_page.find("[data-hint=unit]").fill("mm/s")
    bare_page.find("[data-hint=length_unit]").fill("mm")
    bare_page.find("[data-hint=time_unit]").fill("s")
    bare_page.page.click("#reopen")
    bare_page.wait()
    expect(bare_page.find("#message")).to_be_hidden()
    bare_page.go_to(0)
    bare_page.page.select_option("#component", "u")
    bare_page.find("#panels canvas").first.focus()
    bare_page.page.keyboard.press("ArrowRight")
    expect(bare_page.find("#readout")).to_contain_text("x = −6e−4, y = 6e−4 m")
    assert bare_page.read_number("Truth") == pytest.approx(1e-3 * fields()["u"][0, 2, 4], rel=1e-3)
    # What was said of one file is not said of another.
    bare_page.send("other.npz", as_npz(**fields(), x=X, y=Y, t=T))
    bare_page.wait()
    expect(bare_page.find("[data-hint=dy]")).to_have_value("")
