"""Files that are refused, that need hints, and that come from other programs, on the page."""

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pibert.predictor import save_model
from tests.helpers import randomise, tiny_model
from tests.lookalikes.flow import T, X, Y, fields
from tests.serve.files import as_npy, frames
from tests.serve.server_process import ServerProcess
from tests.serve.visit import Visit, browser, expect, lonely, visit
from tests.trust.flows import spec_of, unit

__all__ = ["browser", "lonely", "visit"]


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model in m/s, without a recording."""
    spec = replace(spec_of(), units=("m/s", "m/s"), parameters=())
    torch.manual_seed(0)
    model = tiny_model("pibert", spec, width=8, heads=2, depth=1, modes=2, refine_width=4)
    folder = tmp_path_factory.mktemp("metric") / "metric"
    save_model(folder, randomise(model, 0), unit(), trained={"forward": True})
    started = ServerProcess([folder, "--wait", 0])
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture
def bare_page(browser: Any, metric: ServerProcess) -> Iterator[Visit]:
    page = Visit(browser, metric)
    expect(page.find("#status")).to_be_empty()
    yield page
    page.close()


def packed(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_after_a_refused_file_no_flow_is_shown_and_none_can_be_run(lonely: Visit):
    lonely.send("good.npy", as_npy(frames()))
    lonely.run()
    expect(lonely.find("#panels figure")).to_have_count(6)
    asked = len([address for address in lonely.addresses if "rollout" in address])
    lonely.send("bad.npy", b"no array at all")
    assert "400" in lonely.complaints.pop()
    expect(lonely.find("#message")).to_contain_text("bad.npy was not opened: expected one whole")
    # Nothing of the earlier flow is left: no fields, numbers, charts, parameters or files to save.
    expect(lonely.find("#panels")).to_have_text(
        "No flow is shown: choose a recording, or drop a file here."
    )
    expect(lonely.find("#panels figure")).to_have_count(0)
    expect(lonely.find("#when")).to_have_text("no frame")
    expect(lonely.find("#badges li")).to_have_count(0)
    expect(lonely.find("[data-parameter]")).to_have_count(0)
    for study in ("probe", "slice", "error", "spectrum"):
        expect(lonely.find(f"[data-study={study}] svg[role=img]")).to_contain_text(
            "No flow is shown"
        )
        expect(lonely.find(f"[data-save={study}]")).to_be_disabled()
    expect(lonely.find("#readout")).to_have_text("Point at a panel to read values.")
    expect(lonely.find("#save-flow")).to_be_disabled()
    expect(lonely.find("#sample")).to_have_value("")
    assert lonely.find("#file").input_value() == ""
    # Neither the button nor Enter nor another model runs the flow that was there before.
    expect(lonely.find("#run")).to_be_disabled()
    lonely.find("#steps").press("Enter")
    lonely.find("#model").dispatch_event("change")
    lonely.page.keyboard.press("ArrowRight")
    lonely.page.click("#save-picture")
    lonely.page.wait_for_timeout(100)
    assert len([address for address in lonely.addresses if "rollout" in address]) == asked
    expect(lonely.find("#message")).to_contain_text("bad.npy was not opened")
    # The page goes on with a recording, and with another file.
    lonely.page.select_option("#sample", index=0)
    lonely.wait()
    expect(lonely.find("#message")).to_be_hidden()
    expect(lonely.find("#panels figure")).to_have_count(6)
    lonely.send("good.npy", as_npy(frames()))
    lonely.run()


def test_a_recording_that_cannot_be_loaded_is_not_taken_for_the_one_before(lonely: Visit):
    lonely.page.route("**/v1/samples/*", lambda route: route.abort())
    lonely.find("#sample").dispatch_event("change")
    expect(lonely.find("#message")).to_contain_text("the server does not answer")
    expect(lonely.find("#run")).to_be_disabled()
    expect(lonely.find("#panels figure")).to_have_count(0)
    lonely.complaints.clear()


def test_a_run_waits_until_the_file_is_open(lonely: Visit):
    """While a file is on its way the flow before it is not run in its place."""
    held: list[Any] = []
    lonely.page.route("**/v1/open?*", lambda route: held.append(route))
    sent = {"name": "late.npy", "mimeType": "application/octet-stream", "buffer": as_npy(frames())}
    lonely.find("#file").set_input_files(sent)
    expect(lonely.find("#status")).to_have_text("Opening the file …")
    expect(lonely.find("#run")).to_be_disabled()
    held[0].continue_()
    expect(lonely.find("#run")).to_be_enabled()
    expect(lonely.find("#when")).to_contain_text("frame 0 of 5")


def test_the_box_of_files_names_the_file_that_was_dropped(lonely: Visit):
    script = """(bytes) => {
        const carried = new DataTransfer();
        carried.items.add(new File([new Uint8Array(bytes)], "dropped.npy"));
        return carried;
    }"""
    lonely.send("chosen.npy", as_npy(frames()))
    dropped = lonely.page.evaluate_handle(script, list(as_npy(frames(3))))
    lonely.find("#panels").dispatch_event("drop", {"dataTransfer": dropped})
    expect(lonely.find("#when")).to_contain_text("frame 0 of 2")
    assert lonely.find("#file").input_value().endswith("dropped.npy")


def test_arrays_of_a_measurement_are_shown_in_metres(bare_page: Visit):
    own = fields()
    spurious = np.zeros((6, 5, 7), bool)
    spurious[0, 1, 3] = True
    uv = np.stack([own["u"], own["v"]], 1).astype(np.float16)
    data = packed(uv=uv, x_mm=1000 * X, y_mm=1000 * Y, dt_s=np.array(0.1), outlier=spurious)
    bare_page.send("jet.npz", data)
    bare_page.wait()  # it states all that the model needs
    bare_page.go_to(0)
    badges = bare_page.find("#badges")
    expect(badges).to_contain_text("brought to metres and seconds: length mm -> m")
    expect(badges).to_contain_text("u in m/s, v in m/s (unit)")
    bare_page.page.select_option("#component", "u")
    bare_page.find("#panels canvas").first.focus()
    bare_page.page.keyboard.press("ArrowRight")
    # The cursor starts in the middle, (3, 2), and goes one column on.
    expect(bare_page.find("#readout")).to_contain_text("x = −0.6, y = 2.6 m")
    u = float(uv[0, 0, 2, 4])
    assert bare_page.read_number("Truth") == pytest.approx(u, rel=1e-3)
    expect(bare_page.find("#when")).to_have_text("frame 0 of 5, t = 0 s")


def test_a_hint_that_a_file_needs_can_be_given(bare_page: Visit):
    data = packed(**fields(), x=X, t=T)
    bare_page.send("flow.npz", data)
    assert "422" in bare_page.complaints.pop()
    expect(bare_page.find("#message")).to_contain_text("give their spacing in the same unit (dy)")
    expect(bare_page.find("#hints")).to_have_attribute("open", "")
    bare_page.find("[data-hint=dy]").fill("0.3")
    bare_page.find("[data-hint=unit]").fill("mm/s")
    bare_page.find("[data-hint=length_unit]").fill("mm")
    bare_page.find("[data-hint=time_unit]").fill("s")
    expect(bare_page.find("#reopen")).to_have_text("Open flow.npz again")
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
    bare_page.send("other.npz", packed(**fields(), x=X, y=Y, t=T))
    bare_page.wait()
    for name in ("dy", "unit", "length_unit", "time_unit"):
        expect(bare_page.find(f"[data-hint={name}]")).to_have_value("")
    expect(bare_page.find("#badges")).not_to_contain_text("mm")


def test_lengths_that_do_not_fit_the_model_are_not_run(bare_page: Visit):
    """A dimensionless flow beside a model in metres."""
    data = packed(**fields(), x=X, y=Y, t=T)
    bare_page.send("flow.npz", data)
    bare_page.wait()
    bare_page.find("#hints").evaluate("(own) => (own.open = true)")
    bare_page.find("[data-hint=length_unit]").fill("D")
    bare_page.page.click("#reopen")
    words = "metric works in m, this file in D: state the unit of its velocities, or convert it."
    expect(bare_page.find("#message")).to_have_text(words)
    expect(bare_page.find("#save-flow")).to_be_disabled()


def test_frames_that_are_not_evenly_apart_show_no_made_up_time(bare_page: Visit):
    times = np.array([0, 1, 2, 4, 5, 6]) * 0.1
    bare_page.send("gap.npz", packed(**fields(), x=X, y=Y, t=times))
    bare_page.wait()
    bare_page.go_to(4)
    expect(bare_page.find("#when")).to_have_text("frame 4 of 5")
    expect(bare_page.find("#badges")).to_contain_text("the frames are not evenly apart in time")
    expect(bare_page.find("#badges")).not_to_contain_text("no time step")
