"""Steps, rollouts and explanations over a real socket, against the predictor itself."""

import contextlib
import io
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

import pibert
from pibert.inference import load_calibrated
from pibert.serve.answers import read_safetensors
from tests.inference.flows import flows
from tests.inference.small import frames
from tests.serve.files import as_npy, blocks_of
from tests.serve.server_process import ServerProcess

NPY, SAFETENSORS = "application/x-npy", "application/vnd.safetensors"


def post(server: ServerProcess, route: str, body: Any = None, **options: Any) -> httpx.Response:
    """A request with a JSON object, or with bytes and the headers that go with them."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = server.client.post(route, **content, **options)
    assert answer.status_code == 200, answer.text
    return answer


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The blocks of a rollout in JSON; it must have its end."""
    *lines, end = map(json.loads, answer.text.splitlines())
    assert end == {"end": True, "frames": len(lines)}
    return lines


@pytest.fixture(scope="module")
def wake(models: Path) -> pibert.Predictor:
    return pibert.load(models / "wake")


def test_models_are_described(server: ServerProcess, wake: pibert.Predictor):
    first, second = server.client.get("/models").json()
    assert (first["name"], first["kind"], first["calibration"]) == ("wake", "pibert", None)
    spacing = {"dx": 0.3, "dy": 0.2, "x0": 0.0, "y0": 0.0}
    grid = {"shape": [12, 20], **spacing, "sides": ["open"] * 4, "body": 0}
    assert first["grid"] | {"body": 0} == grid
    assert first["parameters"][0]["range"] == pytest.approx([100, 10000])
    assert first["weights"]["sha256"] == wake.card["weights"]["sha256"]
    assert first["metrics"] == {"error": 0.25} and not first["trained"]["consistency"]
    assert second["calibration"]["leads"] == 3 and sum(map(sum, second["grid"]["body"])) == 4


def test_a_step_is_that_of_the_predictor(server: ServerProcess, wake: pibert.Predictor):
    fields = frames(2).numpy()
    mask = np.ones(fields.shape[-2:], bool)
    mask[3:6, 4:9] = False
    expected = wake.step(fields, {"Re": [200.0, 900.0]}, mask)
    asked = {"model": "wake", "parameters": {"Re": [200.0, 900.0]}}

    as_json = asked | {"fields": fields.tolist(), "mask": mask.tolist()}
    found = post(server, "/v1/step", as_json).json()
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-4, atol=1e-4)
    assert found["channels"] == ["u", "v"] and found["dt"] == 0.1 and found["notes"] == []

    body = safetensors.numpy.save(
        {"fields": fields, "mask": mask.astype(np.uint8)},
        {"model": "wake", "parameters": json.dumps(asked["parameters"])},
    )
    answer = post(server, "/v1/step", body, headers={"content-type": SAFETENSORS})
    assert answer.headers["content-type"] == SAFETENSORS
    arrays, metadata = read_safetensors(answer.content)
    np.testing.assert_allclose(arrays["prediction"], expected, rtol=1e-4, atol=1e-4)
    assert arrays["prediction"].dtype == np.float32 and json.loads(metadata["model"]) == "wake"

    answer = post(
        server,
        "/v1/step",
        as_npy(fields[0]),
        headers={"content-type": NPY},
        params={"model": "wake", "parameters": '{"Re": 200}'},
    )
    expected = wake.step(fields[0], {"Re": 200.0})
    found_array = np.load(io.BytesIO(answer.content))
    np.testing.assert_allclose(found_array, expected, rtol=1e-4, atol=1e-4)
    assert found_array.shape == (1, 2, 12, 20)


@pytest.mark.parametrize("unknown", [None, [None]])
def test_null_is_an_unknown_parameter(server: ServerProcess, wake: pibert.Predictor, unknown: Any):
    body = {"model": "wake", "fields": frames(1).tolist()}
    found = post(server, "/v1/step", body | {"parameters": {"Re": unknown}}).json()
    expected = wake.step(frames(1).numpy(), {"Re": math.nan})
    np.testing.assert_allclose(found["prediction"], expected, atol=1e-4)
    assert found["notes"] == []
    (note,) = post(server, "/v1/step", body).json()["notes"]
    assert note["code"] == "unknown-parameters" and note["severity"] == "warning"
    assert "Re" in note["text"] and "or null where one is unknown" in note["remedy"]


def test_a_rollout_is_streamed_in_every_kind(server: ServerProcess, wake: pibert.Predictor):
    fields = frames(2).numpy()
    expected = wake.rollout(fields, 3)
    body = {"model": "wake", "fields": fields.tolist(), "steps": 3}

    lines = lines_of(post(server, "/v1/rollout", body))
    assert [line["start"] for line in lines] == [0, 1, 2] and lines[0]["units"] == ["1", "1"]
    as_json = [line["prediction"] for line in lines]
    plain, packed = (
        blocks_of(post(server, "/v1/rollout", body, headers={"accept": kind}).content)
        for kind in (NPY, SAFETENSORS)
    )
    arrays, texts = zip(*map(read_safetensors, packed), strict=True)
    assert [metadata["start"] for metadata in texts] == ["0", "1", "2"]
    for blocks in (
        as_json,
        [np.load(io.BytesIO(block)) for block in plain],
        [own["prediction"] for own in arrays],
    ):
        joined = np.concatenate(blocks, axis=1)
        np.testing.assert_allclose(joined, expected, rtol=1e-3, atol=1e-3)


def test_requests_at_once_share_model_steps(server: ServerProcess, wake: pibert.Predictor):
    grids = [frames(1, seed=n).numpy() for n in range(6)]
    grids[2] = grids[2][..., ::2, ::2].copy()  # another grid may join too

    def ask(number: int) -> Any:
        body = {"model": "wake", "fields": grids[number].tolist()}
        body["parameters"] = {"Re": 100.0 + number}
        if number % 2:
            lines = lines_of(post(server, "/v1/rollout", body | {"steps": 2}))
            return np.concatenate([line["prediction"] for line in lines], axis=1)
        return np.asarray(post(server, "/v1/step", body).json()["prediction"])

    before = batches(server)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(ask, range(6)))
    counted = batches(server)
    for number, answer in enumerate(found):
        with pytest.warns() if number == 2 else contextlib.nullcontext():
            alone = wake.rollout(grids[number], 1 + number % 2, {"Re": 100.0 + number})
        np.testing.assert_allclose(answer, alone, rtol=1e-3, atol=1e-3)
    # Nine model steps of one sample were asked for.
    assert counted["sum"] - before["sum"] == 9
    assert counted["count"] - before["count"] < 9


def batches(server: ServerProcess) -> dict[str, float]:
    lines = server.client.get("/metrics").text.splitlines()
    name = "pibert_batch_samples"
    return {
        what: float(
            next((x.split()[1] for x in lines if x.startswith(f'{name}_{what}{{model="wake"')), 0)
        )
        for what in ("sum", "count")
    }


def test_an_explanation_is_the_predictor_s(server: ServerProcess, wake: pibert.Predictor):
    fields = frames(2).numpy()
    found = post(server, "/v1/explain", {"model": "wake", "fields": fields.tolist()}).json()
    expected = wake.explain(fields)
    np.testing.assert_allclose(found["bias"], expected.bias, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found["attention"], expected.attention, rtol=1e-3, atol=1e-5)
    assert found["gate"] == pytest.approx(expected.gate)
    assert set(found["input_residuals"]) == set(expected.input_residuals)
    assert "consistency" not in found  # that head is not trained


def test_intervals_warning_and_consistency_of_a_model(server: ServerProcess, models: Path):
    own = flows(2, seed=7)
    fields = np.stack([t.read(slice(0, 2)).numpy() for t in own])
    re = [t.parameters["Re"] for t in own]
    expected_prediction = load_calibrated(models / "waves").rollout(
        fields, 3, {"Re": np.array(re)}, level=0.8
    )
    body = {"model": "waves", "fields": fields.tolist(), "parameters": {"Re": re}}

    lines = lines_of(post(server, "/v1/rollout", body | {"steps": 3, "level": 0.8}))
    expected = {
        "prediction": expected_prediction.fields,
        "low": expected_prediction.intervals.low,
        "high": expected_prediction.intervals.high,
    }
    for name, values in expected.items():
        joined = np.concatenate([np.asarray(line[name], float) for line in lines], axis=1)
        np.testing.assert_allclose(joined, values, rtol=1e-3, atol=1e-3)
    first = lines[0]
    assert first["level"] == 0.8 and len(first["ood"]["p"]) == len(first["ood"]["reasons"]) == 2
    np.testing.assert_allclose(first["consistency"], expected_prediction.consistency, rtol=1e-3)
    for name, values in (
        ("flagged", expected_prediction.ood.flagged),
        ("limited", expected_prediction.ood.limited),
    ):
        flags = first["ood"][name]
        assert all(type(one) is bool for one in flags) and flags == values.tolist()

    plain = post(server, "/v1/step", body | {"consistency": True}).json()
    np.testing.assert_allclose(plain["consistency"], expected_prediction.consistency, rtol=1e-3)
    assert "low" not in plain

    one = post(
        server,
        "/v1/step",
        body | {"fields": fields[0].tolist(), "parameters": {"Re": re[0]}, "level": 0.8},
    )
    assert np.shape(one.json()["low"]) == (1, 2, 8, 12) and np.shape(one.json()["ood"]["p"]) == ()


def test_intervals_end_after_the_calibrated_lead_times_with_a_note(server: ServerProcess):
    own = flows(1, seed=7)[0]
    body = {"model": "waves", "fields": own.read(slice(0, 2)).tolist(), "steps": 5, "level": 0.8}
    lines = lines_of(post(server, "/v1/rollout", body | {"parameters": dict(own.parameters)}))
    low, made = (
        np.asarray([line[name][0] for line in lines], float) for name in ("low", "prediction")
    )
    plain = body | {"level": None, "parameters": dict(own.parameters)}
    blocks = lines_of(post(server, "/v1/rollout", plain))
    expected = np.asarray([block["prediction"][0] for block in blocks], float)
    np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-3)
    assert np.isfinite(low[:3, :, 0]).all() and np.isnan(low[3:]).all()
    (note,) = lines[0]["notes"]
    assert note["code"] == "calibrated-leads" and "the first 3 of 5 frames" in note["text"]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"fields": frames(1)[:, :, :1].tolist()}, 422, "channels ['u', 'v']"),
        ({"parameters": {"Ra": 1}}, 422, "'Ra'"),
        ({"dx": 0.1}, 422, "both dx and dy"),
        ({"level": 0.9}, 422, "calibration"),
        ({"consistency": True}, 422, "consistency"),
        ({"model": "another"}, 404, "'another'"),
        ({"model": None}, 422, "wake, waves"),
    ],
)
def test_faults_are_named(alive: ServerProcess, change: dict[str, Any], status: int, words: str):
    body = {"model": "wake", "fields": frames(1).tolist()} | change
    answer = alive.client.post("/v1/step", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_a_missing_number_is_refused_unless_masked(alive: ServerProcess):
    fields = frames(1).tolist()
    fields[0][0][1][2][3] = None
    body = {"model": "wake", "fields": fields}
    answer = alive.client.post("/v1/step", json=body)
    assert answer.status_code == 422
    assert "channel 'v', row 2, column 3" in answer.json()["error"]["message"]
    mask = np.ones((12, 20), int)
    mask[2, 3] = 0
    post(alive, "/v1/step", body | {"mask": mask.tolist()})
