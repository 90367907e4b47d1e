"""The page with flows of all kinds: where they lie, files unlike the model, unlike models."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pibert import Grid, Parameter
from pibert.data.format import write
from pibert.predictor import save_model
from tests.helpers import randomise, tiny_model
from tests.serve.files import as_npy, frames, stating
from tests.serve.server_process import ServerProcess
from tests.serve.visit import Visit, browser, expect, lonely, visit
from tests.trust.flows import BODY, flows, spec_of, unit

__all__ = ["browser", "lonely", "visit"]


@pytest.fixture(scope="module")
def unlike(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The waves, and a model with another history, grid, step and one more parameter."""
    folder = tmp_path_factory.mktemp("unlike")
    spec = spec_of()
    grid = Grid((6, 9), dx=0.4, dy=0.8 / 3)
    coarse = replace(spec, grid=grid, parameters=(*spec.parameters, Parameter(name="Ma")))
    for name, own in (("coarse", coarse), ("slow", replace(spec, dt=0.2))):
        torch.manual_seed(0)
        settings = {"width": 8, "heads": 2, "depth": 1, "modes": 2, "refine_width": 4}
        model = tiny_model("pibert", own, **settings, history=3)
        with torch.no_grad():
            for parameter in randomise(model, 0).parameters():
                parameter.mul_(0.3)
        save_model(folder / name, model, unit(), trained={"forward": True})
    started = ServerProcess([models / "waves", folder / "coarse", folder / "slow", "--wait", 0])
    yield started.wait_until_ready()
    assert started.stop() == 0


# What is drawn on the panels as text: [words, left, right, width of the canvas].
HEAR_TEXTS = """
    window.texts = [];
    const own = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (words, x, y, most = Infinity) {
        const [width, m] = [Math.min(this.measureText(words).width, most), this.getTransform()];
        const left = x - { left: 0, center: width / 2, right: width }[this.textAlign];
        const ends = [left, left + width].map((end) => end * m.a + m.e);
        if (m.b === 0) window.texts.push([words, ...ends, this.canvas.width]);
        own.call(this, words, x, y, ...(most < Infinity ? [most] : []));
    };
"""


def written(page: Visit) -> list[Any]:
    """What the panels write when they are drawn anew."""
    page.page.evaluate("() => (window.texts.length = 0)")
    page.find("#smooth").evaluate("(own) => own.click()")
    page.page.wait_for_function("() => window.texts.length > 20")
    found: list[Any] = page.page.evaluate("() => window.texts")
    return found


def test_axes_readout_probe_and_slice_are_in_the_coordinates_of_the_recording(
    browser: Any, alone: ServerProcess
):
    lonely = Visit(browser, alone, script=HEAR_TEXTS).wait()
    expect(lonely.find("#when")).to_have_text("frame 11 of 11, t = 6.1 D/U")
    lonely.page.mouse.move(*lonely.at(0.5, 0.5))
    expect(lonely.find("#readout")).to_contain_text("x = −1.5, y = 0.4 D")
    lonely.page.mouse.click(*lonely.at(11.5, 7.5))
    expect(lonely.find("[data-study=probe] .where")).to_have_text("x = 1.8, y = 1.8 D")
    # It goes across the flow to begin with.
    expect(lonely.find("[data-study=slice] .where")).to_have_text("x = 0.6, y = 0.4 to 1.8 D")
    words = {text for text, *_ in written(lonely)}
    assert {"−1", "0", "1", "x (D)"} <= words and "3" not in words
    lonely.close()


def test_what_is_saved_has_the_coordinates(lonely: Visit, tmp_path: Path):
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


@pytest.mark.parametrize("width", [360, 768, 1400, 1920])
def test_no_label_of_a_panel_is_cut(browser: Any, alone: ServerProcess, width: int):
    size = {"width": width, "height": 900}
    page = Visit(browser, alone, script=HEAR_TEXTS, viewport=size).wait()
    for scale in (1.0, 1e-6, 1e6):
        page.send("scaled.npy", as_npy((scale * frames()).astype(np.float32)))
        expect(page.find("#when")).to_contain_text("frame 0 of 5")
        for words, left, right, room in written(page):
            assert -0.5 <= left and right <= room + 0.5, words
    widths = page.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert widths == [width, width]
    page.close()


def test_bars_are_shown_by_default_and_end_with_a_note(lonely: Visit):
    expect(lonely.find("#component")).to_have_value("u")
    expect(lonely.find("#level")).to_have_value("0.9")
    legend = lonely.find("[data-study=probe] .legend")
    expect(legend).to_contain_text("90 % error bars, 3 frames ahead")
    expect(lonely.find("#badges")).to_contain_text("error bars for the first 3 of 10 frames")
    bars = lonely.find("figure[data-panel=bars0] canvas").first
    expect(bars).to_have_attribute("aria-label", re.compile("No error bars after frame 4"))
    lonely.go_to(4)
    expect(bars).to_have_attribute(
        "aria-label", re.compile(r"^Error bars, ± of u, .*: \S+ to \S+$")
    )
    expect(lonely.find("#badges")).to_contain_text("90 % bars hold the truth at")
    lonely.page.select_option("#component", "speed")
    expect(bars).to_have_attribute("aria-label", re.compile("Error bars are of u and v: choose"))
    expect(legend).to_contain_text("Error bars are of u and v")


def test_the_probe_shows_what_is_near_the_prediction_or_all_frames(lonely: Visit):
    lonely.send("long.npy", as_npy(np.tile(frames(12), (5, 1, 1, 1))))
    lonely.page.fill("#steps", "6")
    lonely.run()
    button = lonely.find("#whole-time")

    def pieces() -> int:
        return lonely.find("[data-study=probe] path.truth").first.get_attribute("d").count("L")

    lonely.go_to(30)  # elsewhere the whole is needed
    expect(button).to_be_disabled()
    assert pieces() == 59
    lonely.go_to(4)
    assert pieces() == 7  # two frames are given, six predicted
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert pieces() == 59
    assert len(lonely.table("probe")["truth"]) == 60


def test_the_alarm_says_p_and_why_in_words(lonely: Visit):
    expect(lonely.find("#badges .good").first).to_have_text(
        re.compile(r"^No alarm: like the training data \(p = \S+\)$")
    )
    noise = np.random.default_rng(0).normal(size=(6, 2, 8, 12)).astype(np.float32)
    lonely.send("noise.npy", as_npy(20 * noise))
    lonely.run()
    expect(lonely.find("#badges .warn").first).to_have_text(
        re.compile(
            r"^Alarm: unlike the training data \(p = 0\.0\d+\)\. "
            r"Oddest: (its|the|how) .* \([\w ]+\)\. Do not trust the bars\.$"
        )
    )


FILES: dict[str, tuple[bytes, str | None, str | None]] = {
    # name: content, what the badges say, what the message says in place of a prediction
    "three channels": (
        as_npy(np.concatenate([frames(), frames()[:, :1]], 1)),
        "taken in order to be u, v, p; no model takes p",
        None,
    ),
    "pressure first": (
        stating(
            np.concatenate([frames()[:, :1], frames()], 1),
            channels=["p", "u", "v"],
            units=["1", "1", "1"],
        ),
        "alarm",
        None,
    ),
    "other names": (stating(frames(), channels=["a", "b"]), "taken in order, a, b", None),
    "one channel": (as_npy(frames()[:, :1]), None, "bare takes 2 channels (u, v), this has 1."),
    "one frame": (as_npy(frames(1)), None, "bare takes 2 frames at once, this has 1."),
    "no more than needed": (as_npy(frames(2)), "error bars for the first 3 of 20 frames", None),
    "half the step": (stating(frames(12), dt=0.05), "every 2nd frame is taken", None),
    "another step": (stating(frames(), dt=0.07), "sees the flow at another pace", None),
    "no step": (stating(frames(), dt=None), "states no time step", None),
    "units of another kind": (
        stating(frames(), units=["m/s", "m/s"]),
        "u, v: taken to be in no unit, as for the model",
        None,
    ),
    "huge values": (as_npy(1000 * frames()), "is it in other units?", None),
    "another grid": (as_npy(frames()[..., ::2, ::3]), "are resampled to the model's 8 x 12", None),
    "another size": (stating(frames(), dx=0.6, dy=0.2), "seen at another scale", None),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_unlike_the_model_works_or_says_why_not(lonely: Visit, name: str):
    data, remark, refused = FILES[name]
    lonely.send(f"{name}.npy", data)
    lonely.page.click("#run")
    if refused is not None:
        expect(lonely.find("#message")).to_have_text(refused)
        return
    lonely.wait()
    expect(lonely.find("#message")).to_be_hidden()
    expect(lonely.find("#badges")).to_contain_text(re.compile(re.escape(remark or ""), re.I))
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


def test_without_truth_the_panels_say_so(lonely: Visit):
    lonely.send("two.npy", as_npy(frames(2)))
    lonely.run()
    expect(lonely.find("#when")).to_contain_text("frame 21 of 21")
    for panel, words in {
        "truth": "The recording ends before this frame",
        "vorticity": "The recording ends before this frame",
        "error0": "There is no truth to compare with",
    }.items():
        canvas = lonely.find(f"figure[data-panel={panel}] canvas").first
        expect(canvas).to_have_attribute("aria-label", re.compile(words))
    expect(lonely.find("[data-study=error] svg")).to_contain_text("no truth to compare with")


def test_units_that_cannot_be_brought_to_those_of_a_model_are_refused_in_words(lonely: Visit):
    script = """async () => {
        const { objection } = await import("./runs.js");
        const model = { name: "wake", channels: ["u"], units: ["m/s"], history: 1 };
        const recording = { channels: ["u"], units: ["ft/s"], count: 3 };
        return objection(model, recording);
    }"""
    assert lonely.page.evaluate(script) == "wake takes u in m/s, this has ft/s: convert the file."


def test_one_model_alone_tells_how_to_serve_two(lonely: Visit):
    expect(lonely.find("#other")).to_be_disabled()
    expect(lonely.find("#other-note")).to_contain_text("pibert serve MODEL OTHER")


def test_models_with_other_history_grid_and_parameters_are_compared(
    visit: Callable[..., Visit], unlike: ServerProcess
):
    page = visit(unlike)
    page.page.select_option("#other", "coarse")
    expect(page.find("#other-note")).to_contain_text("6 × 9 points; step 0.1; takes 3 frames")
    expect(page.find("#start")).to_have_value("2")
    expect(page.find("[data-parameter]")).to_have_count(2)
    page.find("[data-parameter=Ma]").fill("0.5")
    page.run()
    expect(page.find("#message")).to_be_hidden()
    expect(page.find("#badges")).to_contain_text("coarse: fields on 8 x 12 points")
    found = page.table("error")
    assert np.isfinite(found["waves"]).all() and np.isfinite(found["coarse"]).all()
    assert len(found["coarse"]) == 9  # frames 3 to 11


def test_models_with_other_time_steps_are_not_compared_and_it_is_said_why(
    visit: Callable[..., Visit], unlike: ServerProcess
):
    page = visit(unlike)
    page.page.select_option("#other", "slow")
    page.page.click("#run")
    expect(page.find("#message")).to_have_text(
        "slow steps by 0.2, waves by 0.1: choose models with one time step."
    )
