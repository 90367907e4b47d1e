"""The page with files unlike the model, refused files, and files that need hints."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pibert.data.format import write
from tests.inference.flows import BODY, flows
from tests.lookalikes.flow import T, X, fields
from tests.serve.files import as_npy, frames, stating
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
        "assumed to be u, v, p; no model takes p",
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


def test_a_hint_that_a_file_needs_can_be_given(lonely: Visit):
    file = io.BytesIO()
    np.savez(file, **dict[str, Any](fields()), x=X, t=T)
    lonely.send("flow.npz", file.getvalue())
    assert "422" in lonely.complaints.pop()
    expect(lonely.find("#message")).to_contain_text("give their spacing in the same unit (dy)")
    expect(lonely.find("#hints")).to_have_attribute("open", "")
    lonely.find("[data-hint=dy]").fill("0.3")
    lonely.page.click("#reopen")
    lonely.wait()
    expect(lonely.find("#message")).to_be_hidden()
    # What was said of one file is not said of another.
    lonely.send("other.npy", as_npy(frames()))
    expect(lonely.find("[data-hint=dy]")).to_have_value("")
