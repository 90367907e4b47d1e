"""Steps, rollouts and explanations over a real socket, against the predictor itself."""

import contextlib
import io
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

import pibert
from pibert import trust
from pibert.serve.arrays import read_safetensors
from tests.predictor.small import frames
from tests.serve.server_process import ServerProcess
from tests.trust.flows import flows

NPY, SAFETENSORS = "application/x-npy", "application/vnd.safetensors"


def as_npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def post(server: ServerProcess, route: str, body: Any = None, **options: Any) -> httpx.Response:
    """A request with a JSON object, or with bytes and the headers that go with them."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = server.client.post(route, **content, **options)
    assert answer.status_code == 200, answer.text
    return answer


def blocks_of(stream: bytes) -> Iterator[bytes]:
    """The blocks of a binary rollout; it must have its end."""
    place = 0
    while length := struct.unpack_from("<I", stream, place)[0]:
        yield stream[place + 4 : place + 4 + length]
        place += 4 + length
    assert place + 4 == len(stream)


@pytest.fixture(scope="module")
def wake(models: Path) -> pibert.Predictor:
    return pibert.load(models / "wake")


def test_signs_of_life(server: ServerProcess):
    assert server.client.get("/health").json() == {"status": "alive"}
    assert server.client.get("/ready").json() == {"status": "ready"}


def test_models_are_described(server: ServerProcess, wake: pibert.Predictor):
    first, second = server.client.get("/models").json()
    assert (first["name"], first["kind"], first["calibration"]) == ("wake", "pibert", None)
    assert first["grid"] | {"body": 0} == {
        "shape": [12, 20],
        "dx": 0.3,
        "dy": 0.2,
        "x0": 0.0,
        "y0": 0.0,
        "sides": ["open"] * 4,
        "body": 0,
    }
    assert first["parameters"][0]["range"] == pytest.approx([100, 10000])
    assert first["weights"]["sha256"] == wake.card["weights"]["sha256"]
    assert first["metrics"] == {"error": 0.25} and not first["trained"]["consistency"]
    assert second["calibration"]["leads"] == 3 and sum(map(sum, second["grid"]["body"])) == 4


def test_a_step_in_every_kind_is_that_of_the_predictor(
    server: ServerProcess, wake: pibert.Predictor
):
    fields = frames(2).numpy()
    mask = np.ones(fields.shape[-2:], bool)
    mask[3:6, 4:9] = False
    expected = wake.step(fields, {"Re": [200.0, 900.0]}, mask)
    asked = {"model": "wake", "parameters": {"Re": [200.0, 900.0]}}

    as_json = asked | {"fields": fields.tolist(), "mask": mask.tolist()}
    found = post(server, "/v1/step", as_json).json()
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-4, atol=1e-4)
    assert found["channels"] == ["u", "v"] and found["dt"] == 0.1 and found["remarks"] == []

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


def test_accept_chooses_the_kind(server: ServerProcess):
    body = {"model": "wake", "fields": frames(1).tolist()}
    for kind in ("application/json", NPY, SAFETENSORS):
        accept = {"accept": f"text/html;q=0.9, {kind};q=0.5"}
        assert post(server, "/v1/step", body, headers=accept).headers["content-type"] == kind
    refused = server.client.post("/v1/step", json=body, headers={"accept": "image/png"})
    assert refused.status_code == 406


def test_a_rollout_is_streamed_in_every_kind(server: ServerProcess, wake: pibert.Predictor):
    fields = frames(2).numpy()
    expected = wake.rollout(fields, 3)
    body = {"model": "wake", "fields": fields.tolist(), "steps": 3}

    lines = [json.loads(line) for line in post(server, "/v1/rollout", body).text.splitlines()]
    assert [line.get("start") for line in lines] == [0, 1, 2, None]
    assert lines[-1] == {"end": True, "frames": 3} and lines[0]["units"] == ["1", "1"]
    joined = np.concatenate([line["prediction"] for line in lines[:-1]], axis=1)
    np.testing.assert_allclose(joined, expected, rtol=1e-3, atol=1e-3)

    headers = {"accept": NPY}
    blocks = blocks_of(post(server, "/v1/rollout", body, headers=headers).content)
    joined = np.concatenate([np.load(io.BytesIO(block)) for block in blocks], axis=1)
    np.testing.assert_allclose(joined, expected, rtol=1e-3, atol=1e-3)

    headers = {"accept": SAFETENSORS}
    blocks = blocks_of(post(server, "/v1/rollout", body, headers=headers).content)
    found = [read_safetensors(block) for block in blocks]
    joined = np.concatenate([arrays["prediction"] for arrays, _ in found], axis=1)
    np.testing.assert_allclose(joined, expected, rtol=1e-3, atol=1e-3)
    assert [metadata["start"] for _, metadata in found] == ["0", "1", "2"]


def test_requests_at_once_share_model_steps_and_get_what_each_would_get_alone(
    server: ServerProcess, wake: pibert.Predictor
):
    grids = [frames(1, seed=n).numpy() for n in range(6)]
    grids[2] = grids[2][..., ::2, ::2].copy()  # another grid may join too

    def ask(number: int) -> Any:
        body = {
            "model": "wake",
            "fields": grids[number].tolist(),
            "parameters": {"Re": 100.0 + number},
        }
        if number % 2:
            lines = post(server, "/v1/rollout", body | {"steps": 2}).text.splitlines()
            return np.concatenate([json.loads(line)["prediction"] for line in lines[:-1]], axis=1)
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


def test_fields_on_another_grid_are_remarked(server: ServerProcess):
    body = {"model": "wake", "fields": frames(1)[..., ::2, ::2].tolist(), "dx": 0.6, "dy": 0.4}
    found = post(server, "/v1/step", body).json()
    assert np.shape(found["prediction"]) == (1, 1, 2, 6, 10)
    assert "resampled" in found["remarks"][0]


def test_an_explanation_has_the_maps_of_the_predictor(
    server: ServerProcess, wake: pibert.Predictor
):
    fields = frames(2).numpy()
    found = post(server, "/v1/explain", {"model": "wake", "fields": fields.tolist()}).json()
    expected = wake.explain(fields)
    np.testing.assert_allclose(found["bias"], expected.bias, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found["attention"], expected.attention, rtol=1e-3, atol=1e-5)
    assert found["gate"] == pytest.approx(expected.gate)
    assert set(found["input_residuals"]) == set(expected.input_residuals)
    assert "consistency" not in found  # that head is not trained


def test_error_bars_and_consistency_of_a_calibrated_model(server: ServerProcess, models: Path):
    own = flows(2, seed=7)
    fields = np.stack([t.read(slice(0, 2)).numpy() for t in own])
    re = [t.parameters["Re"] for t in own]
    bars = trust.load(models / "waves").rollout(fields, 3, {"Re": np.array(re)}, level=0.8)
    body = {"model": "waves", "fields": fields.tolist(), "parameters": {"Re": re}}

    text = post(server, "/v1/rollout", body | {"steps": 3, "level": 0.8}).text
    lines = [json.loads(line) for line in text.splitlines()[:-1]]
    for name in ("prediction", "low", "high"):
        joined = np.concatenate([np.asarray(line[name], float) for line in lines], axis=1)
        np.testing.assert_allclose(joined, getattr(bars, name), rtol=1e-3, atol=1e-3)
    first = lines[0]
    assert first["level"] == 0.8 and len(first["alarm"]["p"]) == len(first["alarm"]["parts"]) == 2
    np.testing.assert_allclose(first["consistency"], bars.consistency, rtol=1e-3)
    for name in ("raised", "limited"):
        told = first["alarm"][name]
        assert all(type(one) is bool for one in told)
        assert told == getattr(bars.alarm, name).tolist()

    plain = post(server, "/v1/step", body | {"consistency": True}).json()
    np.testing.assert_allclose(plain["consistency"], bars.consistency, rtol=1e-3)
    assert "low" not in plain

    one = post(
        server,
        "/v1/step",
        body | {"fields": fields[0].tolist(), "parameters": {"Re": re[0]}, "level": 0.8},
    )
    assert np.shape(one.json()["low"]) == (1, 2, 8, 12) and np.shape(one.json()["alarm"]["p"]) == ()


def test_bars_end_where_the_calibration_does_and_a_remark_says_so(server: ServerProcess):
    own = flows(1, seed=7)[0]
    body = {"model": "waves", "fields": own.read(slice(0, 2)).tolist(), "steps": 5, "level": 0.8}
    text = post(server, "/v1/rollout", body | {"parameters": dict(own.parameters)}).text
    lines = [json.loads(line) for line in text.splitlines()[:-1]]
    low, made = (
        np.asarray([line[name][0] for line in lines], float) for name in ("low", "prediction")
    )
    plain = body | {"level": None, "parameters": dict(own.parameters)}
    blocks = post(server, "/v1/rollout", plain).text.splitlines()[:-1]
    expected = np.asarray([json.loads(block)["prediction"][0] for block in blocks], float)
    np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-3)
    assert np.isfinite(low[:3, :, 0]).all() and np.isnan(low[3:]).all()
    assert lines[0]["remarks"] == [
        "error bars for the first 3 of 5 frames: the calibration goes no further"
    ]


@pytest.mark.parametrize("spacing", [{}, {"dx": 0.6, "dy": 0.4}])
def test_each_remark_is_made_once_also_with_error_bars(
    server: ServerProcess, spacing: dict[str, float]
):
    own = flows(1, seed=7)[0]
    fields = 1000 * own.read(slice(0, 2))[..., ::2, ::2]  # another grid, and odd units
    body = {"model": "waves", "fields": fields.tolist(), "parameters": {"Re": 1e6}, **spacing}
    plain = post(server, "/v1/step", body).json()["remarks"]
    barred = post(server, "/v1/step", body | {"level": 0.8}).json()["remarks"]
    starts = [text[:11] for text in plain]
    assert len(set(starts)) == len(starts) and {"channel 'u'", "channel 'v'"} <= set(starts)
    assert plain[0].startswith("fields on 4 x 6 points")
    assert any("Re" in text and "trained on" in text for text in plain)
    assert [text for text in barred if "alarm" not in text] == plain
    (caveat,) = [text for text in barred if "calibrated on the model's grid" in text]
    assert "8 x 12 points, cells of 0.3 x 0.2" in caveat
    # In the words of a request, not in those of Python.
    assert not any("pibert.Grid" in text or "grid=" in text for text in plain)
    assert ("send dx and dy" in plain[0]) == (not spacing)


def test_bars_on_cells_of_another_size_have_a_caveat_and_on_those_of_the_model_none(
    server: ServerProcess,
):
    own = flows(1, seed=7)[0]
    body = {"model": "waves", "fields": own.read(slice(0, 2)).tolist(), "level": 0.8}
    for spacing, has_caveat in (((0.3, 0.2), False), ((0.6, 0.4), True)):
        sent = body | dict(zip(("dx", "dy"), spacing, strict=True))
        remarks = post(server, "/v1/step", sent).json()["remarks"]
        assert any("bars on another one is not known" in text for text in remarks) == has_caveat


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"fields": frames(1)[:, :, :1].tolist()}, 422, "channels ['u', 'v']"),
        ({"fields": [[1.0, 2.0], [3.0]]}, 422, "of one length"),
        ({"fields": frames(1).tolist()[0][0][0]}, 422, "(batch, history, channel, y, x)"),
        ({"fields": "1.0"}, 422, "nested lists"),
        ({"fields": None}, 422, "expected fields"),
        ({"parameters": {"Ra": 1}}, 422, "unknown parameters ['Ra']"),
        ({"parameters": {"Re": -1}}, 422, "positive"),
        ({"parameters": {"Re": [1.0, 2.0]}}, 422, "one finite number"),
        ({"parameters": {"Re": "fast"}}, 422, "expected a number"),
        ({"mask": [[True]]}, 422, "expected a mask"),
        ({"mask": [[0.5]]}, 422, "true and false"),
        ({"dx": 0.1}, 422, "both dx and dy"),
        ({"dx": -0.1, "dy": 1}, 422, "positive"),
        ({"level": 0.9}, 422, "calibration"),
        ({"level": 2}, 422, "between 0 and 1"),
        ({"consistency": 1}, 422, "true or false"),
        ({"consistency": True}, 422, "consistency"),
        ({"steps": 3}, 422, "found ['steps']"),
        ({"model": "another"}, 404, "no model 'another'"),
        ({"model": None}, 422, "one of: wake, waves"),
        ({"model": 3}, 422, "name of a model"),
    ],
)
def test_what_is_wrong_is_told(
    alive: ServerProcess, change: dict[str, Any], status: int, words: str
):
    body = {"model": "wake", "fields": frames(1).tolist()} | change
    answer = alive.client.post("/v1/step", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_a_missing_number_is_refused_unless_the_mask_says_so(alive: ServerProcess):
    fields = frames(1).tolist()
    fields[0][0][1][2][3] = None
    body = {"model": "wake", "fields": fields}
    answer = alive.client.post("/v1/step", json=body)
    assert answer.status_code == 422
    assert "channel 'v', row 2, column 3" in answer.json()["error"]["message"]
    mask = np.ones((12, 20), int)
    mask[2, 3] = 0
    post(alive, "/v1/step", body | {"mask": mask.tolist()})
