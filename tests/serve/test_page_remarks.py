"""What the page says, and does not claim, of flows that are unlike those a model knows."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pibert.data.format import write
from pibert.predictor import save_model
from tests.predictor.small import make_runaway
from tests.serve.files import as_npy, frames, stating
from tests.serve.server_process import ServerProcess
from tests.serve.visit import Visit, browser, expect, lonely, visit
from tests.trust.flows import flows, saved

__all__ = ["browser", "lonely", "visit"]


@pytest.fixture(scope="module")
def namesakes(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two recordings of one name, whose Re differ."""
    folder = tmp_path_factory.mktemp("namesakes")
    options: list[object] = []
    for number in range(2):
        write(folder / f"case{number}.h5", flows(1, seed=number))
        options += ["--sample", folder / f"case{number}.h5"]
    started = ServerProcess([models / "bare", *options, "--wait", 0])
    yield started.wait_until_ready()
    assert started.stop() == 0


def test_a_recording_of_the_same_name_brings_its_own_parameters(
    visit: Callable[..., Visit], namesakes: ServerProcess
):
    page = visit(namesakes)
    first, second = (flows(1, seed=number)[0].parameters["Re"] for number in range(2))
    box = page.find("[data-parameter=Re]")
    assert float(box.input_value()) == pytest.approx(first, rel=1e-4)
    page.page.select_option("#sample", "case1-wave-0")
    page.wait()
    assert float(box.input_value()) == pytest.approx(second, rel=1e-4)
    assert abs(first - second) > 1
    # What was typed stays while only the model is chosen anew.
    box.fill("91")
    page.find("#model").dispatch_event("change")
    expect(box).to_have_value("91")


def test_a_file_that_states_all_is_predicted_at_once_also_on_another_grid_with_a_caveat(
    lonely: Visit,
):
    coarse = stating(frames()[..., ::2, ::3], dx=0.9, dy=0.4, parameters={"Re": 100.0})
    lonely.send("coarse.safetensors", coarse)
    lonely.wait()
    expect(lonely.find("#when")).to_contain_text("frame 5 of 5")
    expect(lonely.find("#level")).to_have_value("0.9")
    expect(lonely.find("#badges")).to_contain_text(re.compile("(No alarm|Alarm): "))
    caveat = lonely.find("#badges .warn").filter(has_text="calibrated on the model's grid")
    expect(caveat).to_have_count(1)
    lonely.go_to(3)
    expect(lonely.find("figure[data-panel=bars0] canvas").first).to_have_attribute(
        "aria-label", re.compile(r"^Error bars, ± of u, .*: \S+ to \S+$")
    )


def test_a_flow_that_a_model_predicted_is_called_so_and_scores_nothing(
    lonely: Visit, tmp_path: Path
):
    source = {"kind": "predicted", "model": "waves", "weights_sha256": "ab" * 32}
    write(tmp_path / "made.h5", [replace(flows(1, seed=5)[0], source=source)])
    lonely.send("made.h5", (tmp_path / "made.h5").read_bytes())
    lonely.wait()
    lonely.go_to(3)
    expect(lonely.find("#badges .warn").first).to_have_text(
        "Recording: predicted by waves (weights abababababab). It is no truth to score by."
    )
    expect(lonely.find("#badges")).to_contain_text("90 % bars for frames 2 to 4")
    expect(lonely.find("#badges")).not_to_contain_text("hold the truth")
    expect(lonely.find("[data-study=error] svg[role=img]")).to_contain_text("predicted itself")
    expect(lonely.find("[data-study=probe] .legend")).to_contain_text("recording")
    captions = " ".join(lonely.find("#panels figcaption").all_inner_texts())
    assert "Recording (predicted)" in captions and "Difference" in captions
    assert "ruth" not in captions
    expect(lonely.find("#shown")).not_to_contain_text("ruth")
    # With a measured recording all is as before.
    lonely.page.select_option("#sample", index=0)
    lonely.wait()
    expect(lonely.find("#shown")).to_contain_text("Truth")
    expect(lonely.find("[data-study=error] .legend")).to_contain_text("persistence")


def test_frames_are_not_taken_for_channels_and_it_is_said_what_is_expected(lonely: Visit):
    lonely.send("one.npy", as_npy(np.ones((40, 8, 12))))
    expect(lonely.find("#when")).to_contain_text("frame 0 of 39")
    expect(lonely.find("#message")).to_have_text("bare takes 2 channels (u, v), this has 1.")


def test_a_parameter_that_is_not_given_is_said_to_be_unknown(lonely: Visit):
    lonely.send("waves.npy", as_npy(frames()))
    expect(lonely.find("#message")).to_have_text(
        "The file does not state Re: type it and press Run, or run without it."
    )
    lonely.run()
    expect(lonely.find("#badges .warn").filter(has_text="Re is not given")).to_have_count(1)
    alarm = lonely.find("#badges li").filter(has_text="judged without Re, which was not given")
    expect(alarm).to_have_text(re.compile("^No alarm: "))
    expect(alarm).not_to_have_class("good")
    lonely.find("[data-parameter=Re]").fill("100")
    lonely.run()
    expect(lonely.find("#badges")).not_to_contain_text("not given")


@pytest.fixture(scope="module")
def runaway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model whose frames grow by a factor in every step."""
    folder = tmp_path_factory.mktemp("runaway") / "growing"
    predictor = saved(folder)
    make_runaway(predictor.model, 4.0)
    save_model(folder, predictor.model, predictor.normalizer, trained={"forward": True})
    write(folder / "sample.h5", flows(1))
    started = ServerProcess([folder, "--wait", 0])
    yield started.wait_until_ready()
    assert started.stop() == 0


def test_a_rollout_that_runs_away_is_reported_with_its_step(
    visit: Callable[..., Visit], runaway: ServerProcess
):
    page = visit(runaway)
    badge = page.find("#badges .warn").filter(has_text="the rollout runs away")
    expect(badge).to_have_count(1)
    expect(badge).to_contain_text(re.compile(r"from step \d+ on values are more than 20 standard"))


def test_remarks_do_not_speak_python(lonely: Visit):
    lonely.send("coarse.npy", as_npy(frames()[..., ::2, ::3]))
    lonely.run()
    expect(lonely.find("#badges")).to_contain_text("send dx and dy, or a file that states them")
    expect(lonely.find("#badges")).not_to_contain_text("pibert.")


UNITS = """async () => {
    const { stepUnit } = await import("./runs.js");
    const of = (own, theirs, timeUnit) => stepUnit(
        { channels: ["u"], units: [own] }, { channels: ["u"], units: [theirs], timeUnit });
    return [of("mm/ms", "m/s", "s"), of("1", "1", "D/U"), of("1", "m/s", "s")];
}"""


def test_the_step_of_a_model_has_a_unit_where_it_is_known(lonely: Visit):
    expect(lonely.find("#model-facts")).to_contain_text("step 0.1 D/U;")
    assert lonely.page.evaluate(UNITS) == ["ms", "D/U", ""]
