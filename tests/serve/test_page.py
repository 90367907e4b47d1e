"""The page of ``pibert serve`` in a real browser, against a real server with small models."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from tests.serve.conftest import TOKEN
from tests.serve.server_process import ServerProcess
from tests.serve.visit import SHAPE, Visit, browser, expect, visit

__all__ = ["browser", "visit"]

SAMPLE = "case1-wave-0"
DX, DY = 0.3, 0.2
SAFETENSORS = "application/vnd.safetensors"


@pytest.fixture
def opened(visit: Callable[..., Visit], site: ServerProcess) -> Visit:
    """With the prediction that the page makes by itself."""
    return visit(site)


def true_frames(site: ServerProcess) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Fields, what is known, and the facts of the first recording, as the server gives them."""
    answer = site.client.get(f"/v1/samples/{SAMPLE}", headers={"Accept": SAFETENSORS})
    arrays = load(answer.content)
    facts = site.client.get("/v1/samples").json()[0]
    return arrays["fields"], arrays["known"], facts


def ask(site: ServerProcess, route: str, fields: np.ndarray, **arguments: Any) -> dict[str, Any]:
    """The server's own answer, in JSON."""
    _, known, facts = true_frames(site)
    body = {
        "fields": np.where(np.isfinite(fields), fields, np.array(None)).tolist(),
        "mask": known[0].tolist(),
        "model": "waves",
        "parameters": facts["parameters"],
        **arguments,
    }
    answer = site.client.post(f"/v1/{route}", json=body)
    answer.raise_for_status()
    blocks = [json.loads(line) for line in answer.text.splitlines()]
    if "prediction" in blocks[-1]:
        return blocks[-1]
    names = [name for name in ("prediction", "low", "high") if name in blocks[0]]
    return {name: sum((block[name] for block in blocks[:-1]), []) for name in names}


def test_shows_a_prediction_at_once_and_asks_no_other_host(opened: Visit, site: ServerProcess):
    policy = site.client.get("/").headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy
    expect(opened.find("#panels figure")).to_have_count(6)
    # 12 frames, 2 of them given.
    expect(opened.find("#when")).to_have_text("frame 11 of 11, t = 1.1")
    for study in ("probe", "slice", "error", "spectrum"):
        expect(opened.find(f"[data-study={study}] .legend")).to_contain_text("waves")
    expect(opened.find("#message")).to_be_hidden()


def test_a_probe_shows_the_numbers_of_the_interface(opened: Visit, site: ServerProcess):
    opened.page.select_option("#component", "v")
    opened.go_to(4)
    opened.page.mouse.click(*opened.at(7.5, 1.5))
    expect(opened.find("[data-study=probe] .where")).to_have_text("x = 2.1, y = 0.2")
    fields, _, _ = true_frames(site)
    predicted = np.array(ask(site, "rollout", fields[:2], steps=10)["prediction"])
    assert opened.read_number("Truth") == pytest.approx(fields[4, 1, 1, 7], rel=1e-3)
    assert opened.read_number("Prediction") == pytest.approx(predicted[2, 1, 1, 7], rel=1e-3)
    u, v = fields[4]
    curl = (v[1, 8] - v[1, 6]) / (2 * DX) - (u[2, 7] - u[0, 7]) / (2 * DY)
    assert opened.read_number("Vorticity of the truth") == pytest.approx(curl, rel=2e-3)
    found = opened.table("probe")
    assert found["t"] == pytest.approx(0.1 * np.arange(12))
    assert found["truth"] == pytest.approx(fields[:, 1, 1, 7])
    assert np.isnan(found["waves"][:2]).all()
    assert found["waves"][2:] == pytest.approx(predicted[:, 1, 1, 7], rel=1e-4, abs=1e-5)


def test_intervals_and_the_ood_warning_are_shown(opened: Visit, site: ServerProcess):
    opened.page.select_option("#component", "u")
    opened.page.select_option("#level", "0.8")
    expect(opened.find("[name=interval]")).to_be_checked()
    opened.run()
    opened.go_to(3)
    opened.page.mouse.click(*opened.at(7.5, 1.5))
    fields, _, _ = true_frames(site)
    bars = ask(site, "rollout", fields[:2], steps=3, level=0.8)
    low, high = (np.array(bars[name])[:, 0, 1, 7] for name in ("low", "high"))
    half = opened.read_number("Interval, ±")
    assert half == pytest.approx((high[1] - low[1]) / 2, rel=1e-3)
    found = opened.table("probe")
    assert found["low"][2:5] == pytest.approx(low, rel=1e-4)
    assert found["high"][2:5] == pytest.approx(high, rel=1e-4)
    assert np.isnan(found["low"][5:]).all()  # three lead times were calibrated
    for words in ("80 % interval covers the truth at", "distribution", "obeys its equations"):
        expect(opened.find("#badges")).to_contain_text(words)


def test_steps_from_the_true_frames_are_those_of_the_interface(opened: Visit, site: ServerProcess):
    opened.page.select_option("#mode", "forced")
    opened.page.select_option("#level", "")
    opened.page.select_option("#component", "u")
    opened.run()
    opened.page.mouse.click(*opened.at(7.5, 1.5))
    fields, known, _ = true_frames(site)
    windows = np.stack([fields[n : n + 2] for n in range(10)])
    mask = np.broadcast_to(known[0], (10, *SHAPE)).tolist()
    predicted = np.array(ask(site, "step", windows, mask=mask)["prediction"])
    found = opened.table("probe")["waves"][2:12]
    assert found == pytest.approx(predicted[:, 0, 0, 1, 7], rel=1e-4, abs=1e-5)


def test_two_models_are_shown_side_by_side(opened: Visit, site: ServerProcess):
    opened.page.select_option("#other", "calm")
    opened.page.select_option("#component", "u")
    opened.run()
    for panel in ("prediction0", "prediction1", "error0", "error1"):
        expect(opened.find(f"figure[data-panel={panel}]")).to_be_visible()
    expect(opened.find("figure[data-panel=error1] figcaption")).to_contain_text("Error, calm")
    for study in ("error", "spectrum"):
        expect(opened.find(f"[data-study={study}] .legend")).to_contain_text("waves")
        expect(opened.find(f"[data-study={study}] .legend")).to_contain_text("calm")
    found = opened.table("error")
    fields, known, _ = true_frames(site)
    for name in ("waves", "calm"):
        predicted = np.array(ask(site, "rollout", fields[:2], steps=10, model=name)["prediction"])
        assert found[name] == pytest.approx(nmse(predicted, fields[2:], known[2:]), rel=1e-4)
    still = np.broadcast_to(fields[1], fields[2:].shape)
    assert found["persistence"] == pytest.approx(nmse(still, fields[2:], known[2:]), rel=1e-4)


def nmse(predicted: np.ndarray, truth: np.ndarray, known: np.ndarray) -> np.ndarray:
    kept = known[:, None].astype(bool)
    error = np.where(kept, predicted - truth, 0) ** 2
    return error.sum((1, 2, 3)) / (np.where(kept, truth, 0) ** 2).sum((1, 2, 3))


def test_explanation_maps_are_those_of_the_interface(opened: Visit, site: ServerProcess):
    opened.page.check("[name=residual]")
    opened.page.check("[name=bias]")
    fields, _, _ = true_frames(site)
    predicted = np.array(ask(site, "rollout", fields[:2], steps=2)["prediction"])
    canvas = opened.find("figure[data-panel=bias0] canvas").first
    # Frame 2 was made from true frames, frame 4 from predicted ones.
    for frame, window in ((2, fields[:2]), (4, predicted)):
        opened.go_to(frame)
        opened.page.mouse.move(*opened.at(7.5, 1.5))
        expect(canvas).to_have_attribute("aria-label", re.compile(f"frame {frame}, .*: .* to "))
        found = ask(site, "explain", window)
        bias, residuals = found["bias_map"][1][7], found["prediction_residuals"]
        assert opened.read_number("Attention bias") == pytest.approx(bias, rel=2e-3)
        residual = next(iter(residuals.values()))[1][7]
        assert opened.read_number("PDE residual") == pytest.approx(residual, rel=2e-3)


def test_spectra_agree_with_numpy(opened: Visit):
    script = """async ([u, shape, dx, dy]) => {
        const found = await import("./spectrum.js");
        const field = Float32Array.from(u);
        const still = new Float32Array(u.length);
        const line = Float64Array.from(u.slice(0, 15));
        return {
            transform: found.transform(line, new Float64Array(15)).map((part) => [...part]),
            streamwise: found.streamwise(field, still, shape, dx),
            radial: found.radial(still, field, shape, dx, dy),
        };
    }"""
    ny, nx, dx, dy = 24, 30, 0.3, 0.2
    y, x = np.mgrid[:ny, :nx]
    wave = np.sin(2 * np.pi * 5 * x / nx) + 0 * y
    found = opened.page.evaluate(script, [wave.ravel().tolist(), [ny, nx], dx, dy])
    exact = np.fft.fft(wave.ravel()[:15])
    assert found["transform"][0] == pytest.approx(exact.real, abs=1e-5)
    assert found["transform"][1] == pytest.approx(exact.imag, abs=1e-5)
    k, energy = (np.array(found["streamwise"][name]) for name in ("k", "energy"))
    step = 2 * np.pi / (nx * dx)
    assert k[energy.argmax()] == pytest.approx(5 * step)
    # Half the mean square of a sine.
    assert energy.sum() * step == pytest.approx(0.25, rel=0.02)
    k, energy = (np.array(found["radial"][name]) for name in ("k", "energy"))
    assert abs(k[energy.argmax()] - 5 * step) <= k[0] / 2
    assert energy.sum() * k[0] == pytest.approx(0.25, rel=0.02)


def test_a_file_is_shown_with_row_zero_at_the_bottom_and_gaps_marked(opened: Visit):
    fields = np.zeros((3, 2, *SHAPE), np.float32)
    fields[:, 0, 7, 1] = 1.5  # near the upper left corner
    mask = np.ones(SHAPE, np.uint8)
    mask[2, 9] = 0
    file = io.BytesIO()
    np.savez(file, fields=fields, mask=mask)
    opened.send("corner.npz", file.getvalue())
    expect(opened.find("#when")).to_contain_text("frame 0 of 2")
    opened.page.select_option("#component", "u")
    left, top = opened.at(1.5, 7.5)
    opened.page.mouse.move(left, top)
    expect(opened.find("#readout")).to_contain_text("Truth 1.5")
    # The file has no spacing: the model's is taken, and cells are as wide as dx to dy.
    expect(opened.find("#readout")).to_contain_text("x = 0.3, y = 1.4")
    corner = [np.array(opened.at(*place)) for place in ((0, 0), (12, 0), (0, 8))]
    wide, high = corner[1][0] - corner[0][0], corner[0][1] - corner[2][1]
    assert wide / high == pytest.approx(12 * DX / (8 * DY), rel=0.01)
    opened.page.mouse.move(*opened.at(9.5, 2.5))
    expect(opened.find("#readout")).to_contain_text("Truth unknown")
    opened.run()
    expect(opened.find("#message")).to_be_hidden()


# In the page: from outside a fast run would be over before it can be stopped.
STOP_AT_TWENTY = """() => {
    const [when, stop] = ["when", "stop"].map((id) => document.getElementById(id));
    const hear = () => Number(when.textContent.split(" ")[1]) >= 20 && stop.click();
    new MutationObserver(hear).observe(when, { childList: true });
}"""


def test_a_run_that_is_stopped_keeps_the_frames_that_came(opened: Visit):
    opened.page.select_option("#level", "")
    opened.find("#steps").fill("1000")
    opened.page.evaluate(STOP_AT_TWENTY)
    opened.run()
    expect(opened.find("#message")).to_be_hidden()
    last = int(opened.find("#slider").get_attribute("max"))
    assert 20 <= last < 1001
    assert len(np.load(io.BytesIO(opened.save("#save-frames")))) == last - 1
    expect(opened.find("figure[data-panel=truth] canvas").first).to_have_attribute(
        "aria-label", re.compile("The recording ends before this frame")
    )


def test_a_token_is_asked_for_and_kept(browser: Any, strict: ServerProcess):
    page = Visit(browser, strict)
    for words in ("a wrong one", TOKEN):
        expect(page.find("#token-dialog")).to_be_visible()
        page.find("#token").fill(words)
        page.find("#token").press("Enter")
    expect(page.find("#model option")).to_have_text(["wake (pibert)"])
    expect(page.find("#token-dialog")).to_be_hidden()
    page.page.reload()
    expect(page.find("#model option")).to_have_text(["wake (pibert)"])
    expect(page.find("#panels")).to_have_text("Choose a recording, or drop a file here.")
    assert {text for text in page.complaints if "401" not in text} == set()
    page.leave()
