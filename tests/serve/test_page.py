"""The page of ``pibert serve`` in a real browser, against a real server with small models."""

import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.helpers import wait_until
from tests.serve.conftest import TOKEN
from tests.serve.server_process import ServerProcess
from tests.serve.visit import SHAPE, Visit, browser, expect
from tests.trust.flows import saved

__all__ = ["browser"]

SAMPLE = "waves-wave-0"
DX, DY = 0.3, 0.2
SAFETENSORS = "application/vnd.safetensors"


@pytest.fixture(scope="module")
def site(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two models of the same flow, the first with error bars."""
    folder = tmp_path_factory.mktemp("page")
    saved(folder / "calm", seed=1)
    started = ServerProcess([models / "waves", folder / "calm", "--wait", 0])
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture
def visit(browser: Any, site: ServerProcess) -> Iterator[Callable[..., Visit]]:
    """Opens the page; at the end nothing may have gone wrong, and no other host been asked."""
    made: list[Visit] = []

    def open_page(**options: Any) -> Visit:
        made.append(Visit(browser, site, **options))
        return made[-1]

    yield open_page
    for one in made:
        one.close()


@pytest.fixture
def opened(visit: Callable[..., Visit]) -> Visit:
    """With the prediction that the page makes by itself."""
    return visit().wait()


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


# Every frame that is shown from now on, also one that is gone before anyone could ask.
HEAR_FRAMES = """() => {
    const when = document.getElementById("when");
    const frame = () => Number(when.textContent.split(" ")[1]);
    window.seen = [frame()];
    const hear = () => window.seen.at(-1) === frame() || window.seen.push(frame());
    new MutationObserver(hear).observe(when, { childList: true });
}"""


def test_play_pause_and_the_slider_move_through_time(opened: Visit):
    opened.go_to(11)
    opened.page.evaluate(HEAR_FRAMES)
    opened.page.click("#play")
    opened.page.wait_for_function("() => window.seen.length >= 5")
    opened.page.click("#play")
    expect(opened.find("#play")).to_have_text("Play")
    # From the last frame on to the first of the prediction, and forward.
    last, *seen = opened.page.evaluate("() => window.seen.slice(0, 5)")
    assert last == 11 and seen == sorted(seen)
    opened.go_to(5)
    opened.page.select_option("#component", "speed")
    expect(opened.find("figure[data-panel=prediction0] canvas").first).to_have_attribute(
        "aria-label", re.compile(r"^Prediction of \|u\|, frame 5, t = 0.5: \S+ to \S+$")
    )
    opened.go_to(0)
    expect(opened.find("figure[data-panel=prediction0] canvas").first).to_have_attribute(
        "aria-label", re.compile("Given to the model: the prediction begins at frame 2")
    )


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


def test_error_bars_and_alarm_are_shown_where_a_model_is_calibrated(
    opened: Visit, site: ServerProcess
):
    opened.page.select_option("#component", "u")
    opened.page.select_option("#level", "0.8")
    expect(opened.find("[name=bars]")).to_be_checked()
    opened.run()
    opened.go_to(3)
    opened.page.mouse.click(*opened.at(7.5, 1.5))
    fields, _, _ = true_frames(site)
    bars = ask(site, "rollout", fields[:2], steps=3, level=0.8)
    low, high = (np.array(bars[name])[:, 0, 1, 7] for name in ("low", "high"))
    half = opened.read_number("Error bars, ±")
    assert half == pytest.approx((high[1] - low[1]) / 2, rel=1e-3)
    found = opened.table("probe")
    assert found["low"][2:5] == pytest.approx(low, rel=1e-4)
    assert found["high"][2:5] == pytest.approx(high, rel=1e-4)
    assert np.isnan(found["low"][5:]).all()  # three lead times were calibrated
    expect(opened.find("#badges")).to_contain_text("80 % bars hold the truth at")
    expect(opened.find("#badges")).to_contain_text(re.compile("alarm", re.I))
    expect(opened.find("#badges")).to_contain_text("obeys its equations")


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


def test_a_slice_goes_through_the_points_under_it(opened: Visit, site: ServerProcess):
    opened.page.select_option("#component", "u")
    opened.go_to(6)
    opened.page.click("#slicing")
    opened.page.mouse.move(*opened.at(4.5, 6.5))
    opened.page.mouse.down()
    opened.page.mouse.move(*opened.at(7.0, 6.5))
    opened.page.mouse.move(*opened.at(10.5, 6.5))
    opened.page.mouse.up()
    found = opened.table("slice")
    assert found["distance"][-1] == pytest.approx(6 * DX, abs=0.02)
    fields, _, _ = true_frames(site)
    exact = np.interp(found["distance"], DX * np.arange(7), fields[6, 0, 6, 4:11])
    assert found["truth"] == pytest.approx(exact, abs=0.05)
    assert np.isfinite(found["waves"]).all()
    expect(opened.find("#slicing")).to_have_attribute("aria-pressed", "true")


def test_two_models_stand_side_by_side(opened: Visit, site: ServerProcess):
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


def test_maps_of_what_the_model_looked_at(opened: Visit, site: ServerProcess):
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


def test_units_and_spacing_of_a_file_are_shown(opened: Visit):
    facts = {"channels": ["u", "v"], "units": ["m/s", "m/s"], "dt": 0.1, "dx": 0.5, "dy": 0.25}
    texts = {name: json.dumps(fact) for name, fact in facts.items()}
    fields = np.full((2, 2, *SHAPE), 1.5, np.float32)
    opened.send("flow.safetensors", save({"fields": fields}, texts))
    opened.page.select_option("#component", "u")
    opened.go_to(1)
    expect(opened.find("#when")).to_have_text("frame 1 of 1, t = 0.1 s")
    opened.page.mouse.move(*opened.at(2.5, 6.5))
    expect(opened.find("#readout")).to_contain_text("x = 1, y = 1.5 m")
    expect(opened.find("#readout")).to_contain_text("Truth 1.5 m/s")
    expect(opened.find("#readout")).to_contain_text("Vorticity of the truth 0 1/s")
    expect(opened.find("#level")).to_have_value("0.9")  # also on another grid


DROP = """(bytes) => {
    const carried = new DataTransfer();
    carried.items.add(new File([new Uint8Array(bytes)], "five.npy"));
    return carried;
}"""


def test_an_npy_that_is_dropped_is_shown_with_the_body_of_the_model(
    opened: Visit, site: ServerProcess
):
    fields, _, _ = true_frames(site)
    file = io.BytesIO()
    np.save(file, fields[:5])
    dropped = opened.page.evaluate_handle(DROP, list(file.getvalue()))
    opened.find("#panels").dispatch_event("drop", {"dataTransfer": dropped})
    expect(opened.find("#when")).to_contain_text("frame 0 of 4")
    # The file knows of no body, the model does.
    opened.page.mouse.move(*opened.at(2.5, 3.5))
    expect(opened.find("#readout")).to_contain_text("Truth body")
    opened.run()
    expect(opened.find("#when")).to_contain_text("frame 4 of 4")


def test_errors_are_told_in_words_and_the_page_goes_on(opened: Visit):
    opened.send("bad.npy", b"no array at all")
    expect(opened.find("#message")).to_contain_text(
        "bad.npy was not opened: expected one whole file"
    )
    assert opened.complaints == [
        "Failed to load resource: the server responded with a status of 400 (Bad Request)"
    ]
    opened.complaints.clear()
    opened.page.select_option("#sample", SAMPLE)
    opened.wait()
    opened.find("#start").fill("99")
    opened.find("#controls").evaluate("(form) => (form.noValidate = true)")
    opened.page.click("#run")
    expect(opened.find("#message")).to_have_text("From frame: expected 1 to 11, found 99.")
    opened.find("#start").fill("4")
    opened.find("#steps").fill("3")
    opened.run()
    expect(opened.find("#message")).to_be_hidden()
    expect(opened.find("#when")).to_contain_text("frame 7 of 11")


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


def test_what_is_seen_can_be_saved(opened: Visit, site: ServerProcess):
    picture = opened.save("#save-picture")
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    fields, _, _ = true_frames(site)
    predicted = np.array(ask(site, "rollout", fields[:2], steps=10)["prediction"])
    found = np.load(io.BytesIO(opened.save("#save-frames")))
    assert found.dtype == np.float32
    assert found == pytest.approx(predicted, rel=1e-4, abs=1e-5)


def test_everything_can_be_done_with_keys(opened: Visit):
    opened.page.select_option("#component", "u")
    opened.go_to(5)
    opened.find("#slider").press("ArrowRight")
    expect(opened.find("#when")).to_contain_text("frame 6 of")
    opened.find("#slider").evaluate("(own) => own.blur()")
    opened.page.keyboard.press("ArrowLeft")
    opened.page.keyboard.press("ArrowLeft")
    expect(opened.find("#when")).to_contain_text("frame 4 of")
    opened.page.keyboard.press("Space")
    expect(opened.find("#play")).to_have_text("Pause")
    opened.page.keyboard.press("Space")
    expect(opened.find("#play")).to_have_text("Play")
    canvas = opened.find("figure[data-panel=truth] canvas").first
    canvas.focus()
    assert canvas.evaluate("(own) => getComputedStyle(own).outlineStyle") == "solid"
    opened.settle()
    before = opened.find("#when").inner_text()
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Enter"):
        canvas.press(key)
    # From the middle: cell 6, 4.
    expect(opened.find("#readout")).to_contain_text("x = 2.4, y = 1")
    expect(opened.find("[data-study=probe] .where")).to_have_text("x = 2.4, y = 1")
    assert opened.find("#when").inner_text() == before
    expect(opened.find("#readout")).to_have_attribute("aria-live", "polite")
    canvas.press(".")
    expect(opened.find("#when")).not_to_have_text(before)


def test_zoom_is_shared_by_all_panels(opened: Visit):
    def left_edge(panel: str) -> float:
        opened.page.mouse.move(*opened.at(0.1, 4, panel))
        return float(re.findall(r"x = (\S+),", opened.read("Cursor"))[0])

    def begins_beyond(least: float) -> bool:
        return left_edge("error0") >= least

    assert left_edge("truth") == 0
    for least in (DX, 2 * DX):
        opened.page.mouse.move(*opened.at(9, 4))
        opened.page.mouse.wheel(0, -300)  # does not wait until the page has seen it
        wait_until(partial(begins_beyond, least))
    opened.page.mouse.dblclick(*opened.at(6, 4))
    assert left_edge("vorticity") == 0
    # A box drawn over the right part.
    opened.page.mouse.move(*opened.at(6.2, 2))
    opened.page.mouse.down()
    opened.page.mouse.move(*opened.at(8, 4))
    opened.page.mouse.move(*opened.at(11.8, 6))
    opened.page.mouse.up()
    assert left_edge("prediction0") == pytest.approx(6 * DX)
    opened.page.click("#zoom-all")
    assert left_edge("truth") == 0


NAMELESS = """() => {
    const controls = document.querySelectorAll("input, select, button, summary, textarea");
    const named = (own) => {
        const labels = [...(own.labels ?? [])].map((label) => label.textContent);
        const text = own.matches("button, summary") ? own.textContent : "";
        const by = document.getElementById(own.getAttribute("aria-labelledby"))?.textContent;
        const given = [own.getAttribute("aria-label"), by, text, ...labels];
        return given.some((words) => words && words.trim());
    };
    const pictures = document.querySelectorAll("canvas:not([aria-hidden]), svg:not([aria-hidden])");
    const shown = (own) => own.getAttribute("role") === "img" && own.getAttribute("aria-label");
    return {
        controls: controls.length,
        pictures: pictures.length,
        nameless: [...[...controls].filter((own) => !named(own)),
                   ...[...pictures].filter((own) => !shown(own))].map((own) => own.outerHTML),
    };
}"""


def test_every_control_has_a_name_and_every_picture_words(opened: Visit):
    found = opened.page.evaluate(NAMELESS)
    assert found["nameless"] == []
    assert found["controls"] > 25 and found["pictures"] == 10
    expect(opened.find("html")).to_have_attribute("lang", "en")


def test_a_small_screen_needs_no_sideways_scrolling_and_takes_taps(visit: Callable[..., Visit]):
    phone = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).wait()
    for _ in range(2):  # with the settings folded, then open
        widths = phone.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert widths == [390, 390]
        phone.page.click("#settings > summary")
    phone.page.touchscreen.tap(*phone.at(7.5, 5.5))
    expect(phone.find("[data-study=probe] .where")).to_have_text("x = 2.1, y = 1")


def test_colours_follow_the_scheme_of_the_system(visit: Callable[..., Visit]):
    lightness = {}
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme).wait().page
        script = "({ backgroundColor, color }) => [backgroundColor, color]"
        style = page.evaluate_handle("() => getComputedStyle(document.body)")
        colours = style.evaluate(script)
        lightness[scheme] = [sum(map(int, re.findall(r"\d+", own)[:3])) for own in colours]
    assert lightness["light"][0] > 600 > 200 > lightness["light"][1]
    assert lightness["dark"][0] < 200 < 600 < lightness["dark"][1]


def test_sequential_colours_rise_in_lightness_and_the_diverging_ones_mirror(opened: Visit):
    script = """async () => {
        const { table } = await import("./colours.js");
        return Object.fromEntries(["viridis", "magma", "diverging"].map((n) => [n, table(n)]));
    }"""
    tables = opened.page.evaluate(script)
    weights = np.array([0.2126, 0.7152, 0.0722])
    light = {n: (np.array(own) / 255) ** 2.2 @ weights for n, own in tables.items()}
    for name in ("viridis", "magma"):
        assert (np.diff(light[name]) > -0.002).all() and light[name][-1] > 0.7
    middle = light["diverging"]
    assert 120 <= middle.argmax() <= 135
    assert (np.diff(middle[:120]) > -1e-3).all() and (np.diff(middle[136:]) < 1e-3).all()


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


def test_a_slice_is_drawn_with_shift_and_the_arrows(opened: Visit):
    opened.page.keyboard.press("Escape")
    expect(opened.find("[data-study=slice] svg[role=img]")).to_contain_text(
        "Drag in a panel with Shift"
    )
    canvas = opened.find("figure[data-panel=truth] canvas").first
    canvas.focus()
    canvas.press("ArrowLeft")  # to cell 5, 4
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        canvas.press(f"Shift+{key}")
    where = opened.find("[data-study=slice] .where")
    expect(where).to_have_text("x = 1.5 to 2.1, y = 0.8 to 1")
    found = opened.table("slice")
    assert found["distance"][-1] == pytest.approx(np.hypot(2 * DX, DY))
    canvas.press("ArrowDown")  # without Shift it stays
    canvas.press("Shift+ArrowLeft")  # and another begins
    expect(where).to_have_text("x = 2.1 to 1.8, y = 0.8")


def test_everything_is_reached_with_the_tab_key_and_the_fields_at_once(opened: Visit):
    opened.page.evaluate("() => document.activeElement.blur()")
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("() => document.activeElement.className") == "skip"
    opened.page.keyboard.press("Enter")
    reached = set()
    for _ in range(40):
        opened.page.keyboard.press("Tab")
        script = "() => document.activeElement.id || document.activeElement.tagName"
        reached.add(opened.page.evaluate(script))
    assert {"play", "slider", "speed", "slicing", "zoom-in", "CANVAS", "spectrum"} <= reached


CONTRASTS = """() => {
    const style = getComputedStyle(document.documentElement);
    const light = (name) => {
        const hex = style.getPropertyValue(`--${name}`).trim();
        const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pairs = ["text page", "text surface", "muted page", "muted surface", "warn warn-page",
                   "good good-page", "on-accent accent"];
    return pairs.map((pair) => {
        const [a, b] = pair.split(" ").map(light).sort((x, y) => y - x);
        return [pair, (a + 0.05) / (b + 0.05)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(visit: Callable[..., Visit], scheme: str):
    found = visit(color_scheme=scheme).page.evaluate(CONTRASTS)
    assert {pair: ratio for pair, ratio in found if ratio < 4.5} == {}


def test_remarks_of_the_server_are_shown(opened: Visit):
    opened.find("[data-parameter=Re]").fill("1000000")
    opened.run()
    remark = opened.find("#badges .warn").filter(has_text="'Re'")
    expect(remark).to_have_count(1)
    expect(remark).to_contain_text("trained on")
