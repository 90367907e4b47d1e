"""Samples that a server offers, and files that it is sent."""

import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy

from pibert.data.format import write
from pibert.serve.answers import read_safetensors
from tests.inference.flows import BODY, flows
from tests.serve.files import as_npy
from tests.serve.server_process import ServerProcess

BYTES = {"content-type": "application/octet-stream"}


def opened(server: ServerProcess, data: bytes, **query: str) -> tuple[int, dict[str, Any]]:
    answer = server.client.post(
        "/v1/open", content=data, headers=BYTES | {"accept": "application/json"}, params=query
    )
    return answer.status_code, answer.json()


def test_samples_are_listed_and_ranges_of_frames_read(alive: ServerProcess):
    listed = alive.client.get("/v1/samples").json()
    assert [own["id"] for own in listed] == ["more-wave-0", "waves-wave-0", "waves-wave-1"]
    assert listed[1]["frames"] == 12 and listed[1]["models"] == ["wake", "waves"]
    truth = flows(2)[1]
    assert listed[2]["parameters"]["Re"] == pytest.approx(truth.parameters["Re"])

    address = "/v1/samples/waves-wave-1?start=3&stop=5"
    answer = alive.client.get(address, headers={"accept": "application/vnd.safetensors"})
    arrays, metadata = read_safetensors(answer.content)
    fields = truth.read(slice(3, 5)).numpy()
    np.testing.assert_array_equal(arrays["fields"][..., ~BODY.numpy()], fields[..., ~BODY.numpy()])
    assert np.isnan(arrays["fields"][..., BODY.numpy()]).all()
    np.testing.assert_array_equal(arrays["body"], BODY.numpy())
    np.testing.assert_array_equal(arrays["known"][0], ~BODY.numpy())
    assert json.loads(metadata["stop"]) == 5 and json.loads(metadata["dt"]) == 0.1

    plain = alive.client.get(address, headers={"accept": "application/x-npy"})
    assert np.load(io.BytesIO(plain.content)).shape == (2, 2, 8, 12)
    whole = alive.client.get("/v1/samples/waves-wave-0").json()
    assert len(whole["fields"]) == whole["stop"] == 12 and whole["fields"][0][0][3][2] is None


@pytest.mark.parametrize("place", ["none", "%2e%2e%2fmodel.json", "%00"])
def test_an_unknown_id_is_not_found(alive: ServerProcess, place: str):
    assert alive.client.get(f"/v1/samples/{place}").status_code in (404, 405)


@pytest.mark.parametrize("query", ["start=12", "start=-1", "start=x", "start=5&stop=5", "stop=0"])
def test_ranges_without_frames_are_refused(alive: ServerProcess, query: str):
    answer = alive.client.get(f"/v1/samples/waves-wave-0?{query}")
    assert answer.status_code == 422 and answer.json()["error"]["code"] == "invalid"


@pytest.mark.parametrize("place", ["/..%2fapp.py", "/app.py", "/.%00"])
def test_only_files_of_the_page_are_served(alive: ServerProcess, place: str):
    assert alive.client.get(place).status_code == 404
    assert "PIBERT" in alive.client.get("/").text
    assert "javascript" in alive.client.get("/app.js").headers["content-type"]


def test_files_of_arrays_are_opened(alive: ServerProcess):
    fields = np.random.default_rng(0).normal(size=(3, 2, 4, 5))
    fields[1, 0, 2, 3] = np.nan
    status, found = opened(alive, as_npy(fields))
    assert status == 200 and found["channels"] == ["u", "v"]
    assert any("taken for u, v" in note["text"] for note in found["notes"])
    assert found["fields"][1][0][2][3] is None and found["known"][1][2][3] == 0
    np.testing.assert_allclose(found["fields"][0], fields[0], rtol=1e-6)

    packed = io.BytesIO()
    mask = np.ones((4, 5), np.uint8)
    mask[0, 0] = 0
    np.savez_compressed(packed, fields=fields, mask=mask)
    status, found = opened(alive, packed.getvalue())
    assert status == 200 and found["known"][2][0][:2] == [0, 1]

    facts = {"channels": '["a", "b"]', "dt": "0.5", "dx": "2", "dy": "3", "parameters": '{"Re": 7}'}
    status, found = opened(alive, safetensors.numpy.save({"x": fields}, facts))
    assert status == 200 and found["channels"] == ["a", "b"] and found["dt"] == 0.5
    assert found["grid"] == {"shape": [4, 5], "dx": 2.0, "dy": 3.0, "x0": 0.0, "y0": 0.0}
    assert found["parameters"] == {"Re": 7.0}
    assert found["notes"] == []


def test_channels_without_names_are_counted_and_frames_are_not_channels(alive: ServerProcess):
    for shape, channels, frames, text in (
        ((5, 3, 4, 5), ["u", "v", "p"], 5, "taken for u, v, p"),
        ((2, 4, 5), ["sent"], 2, "give its axes as cyx"),
    ):
        status, found = opened(alive, as_npy(np.ones(shape)))
        assert status == 200 and text in found["notes"][0]["text"]
        assert (found["channels"], found["frames"]) == (channels, frames)
    status, found = opened(alive, as_npy(np.ones((40, 8, 12))), name="p.npy")
    assert status == 200 and (found["channels"], found["frames"]) == (["p"], 40)


PREDICTED = {"kind": "predicted", "model": "waves", "weights_sha256": "ab" * 32}


def test_predicted_files_are_labelled(alive: ServerProcess, tmp_path: Path):
    own = flows(1)[0]
    assert alive.client.get("/v1/samples").json()[0]["predicted"] is None
    write(tmp_path / "made.h5", [replace(own, source=PREDICTED)])
    _, native = opened(alive, (tmp_path / "made.h5").read_bytes())
    _, plain = opened(alive, with_facts(np.ones((2, 2, 4, 5)), **FACTS, source=PREDICTED))
    expected = "predicted by waves (weights abababababab)"
    assert native["predicted"] == plain["predicted"] == expected
    for odd in ("text", {"kind": "predicted", "interval_level": "high"}, [1]):
        status, found = opened(alive, with_facts(np.ones((2, 2, 4, 5)), **FACTS, source=odd))
        assert status == 422 and found["error"]["code"] == "invalid"


def test_files_may_have_any_name_and_hints_have_a_length(alive: ServerProcess):
    data = as_npy(np.ones((2, 2, 8, 12), np.float32))
    status, answer = opened(alive, data, name="long name " * 60 + ".npy")
    assert status == 200 and answer["stop"] == 2
    status, answer = opened(alive, data, name="a.npy", unit="m/s" * 20)
    message = answer["error"]["message"]
    assert status == 422 and all(part in message for part in ("unit", "40", "60", "m/sm/s"))


def test_a_native_file_is_opened(alive: ServerProcess, tmp_path: Path):
    own = flows(2)
    write(tmp_path / "own.h5", own)
    data = (tmp_path / "own.h5").read_bytes()
    status, found = opened(alive, data)
    assert status == 200 and found["name"] == "wave-0" and found["frames"] == 12
    assert [note["text"] for note in found["notes"]] == ["the first of 2 trajectories"]
    status, found = opened(alive, data, trajectory="wave-1")
    assert found["parameters"]["Re"] == pytest.approx(own[1].parameters["Re"])
    status, found = opened(alive, data, trajectory="wave-9")
    assert status == 422 and "no trajectory 'wave-9'" in found["error"]["message"]
    assert str(tmp_path) not in found["error"]["message"]


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/never",)


def zip_bomb() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("fields.npy", "w", force_zip64=True) as member:
            for _ in range(400):
                member.write(bytes(1_000_000))
    return packed.getvalue()


def bomb_of_numbers() -> bytes:
    """Each member is an array, of far more numbers than are stored."""
    head = as_npy(np.zeros((1, 2, 4, 5), np.float32)).replace(b"(1, 2, 4, 5)", b"(9, 9, 999, 999)")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fields.npy", head)
    return packed.getvalue()


def lying_zip() -> bytes:
    """Its directory says that a member is small."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fields.npy", bytes(3_000_000))
    stated, lie = (3_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little")
    return packed.getvalue().replace(stated, lie)


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"hello", 400, "found a file without a name"),
        (b"CDF\x01" + bytes(100), 400, "pibert convert"),
        (as_npy(np.array([Evil()], object)), 422, "Python objects are never read"),
        (zip_bomb(), 422, "archive of arrays cannot be read"),
        (bomb_of_numbers(), 422, "bytes, "),
        (lying_zip(), 422, "archive of arrays cannot be read"),
        (safetensors.numpy.save({"fields": np.zeros((1, 2, 4, 5))})[:-3], 422, "safetensors"),
        (b"\x89HDF\r\n\x1a\n" + bytes(500), 400, "HDF5"),
    ],
)
def test_broken_files_are_refused(alive: ServerProcess, data: bytes, status: int, words: str):
    found_status, found = opened(alive, data)
    assert found_status == status
    assert words in found["error"]["message"]


def test_a_native_file_of_more_frames_than_bytes_is_refused(alive: ServerProcess, tmp_path: Path):
    path = tmp_path / "own.h5"
    write(path, flows(1))
    with h5py.File(path, "a") as file:
        group = file["trajectories/wave-0"]
        del group["fields"]
        group.create_dataset("fields", (1 << 30, 2, 8, 12), "<f4", chunks=(1, 2, 8, 12))
    status, found = opened(alive, path.read_bytes())
    assert status == 400 and "send fewer frames" in found["error"]["message"]


FACTS = {"channels": ["u", "v"], "dx": 30.0, "dy": 20.0, "x0": -15.0, "t0": 7.0, "dt": 100.0}
UNITS = {"units": ["mm/s", "mm/s"], "length_unit": "mm", "time_unit": "ms"}


def with_facts(fields: np.ndarray, **facts: Any) -> bytes:
    texts = {name: json.dumps(fact) for name, fact in facts.items()}
    return safetensors.numpy.save({"fields": fields}, texts)


def test_a_file_in_other_units_is_brought_to_metres_and_seconds(alive: ServerProcess):
    fields = np.full((2, 2, 4, 5), 1500.0)
    status, found = opened(alive, with_facts(fields, **FACTS, **UNITS))
    assert status == 200 and found["units"] == ["m/s", "m/s"]
    assert found["fields"][0][0][0][0] == pytest.approx(1.5)
    assert found["grid"]["dx"] == pytest.approx(0.03)
    assert found["grid"]["x0"] == pytest.approx(-0.015)
    assert found["grid"]["y0"] == 0.0
    assert (found["dt"], found["t0"]) == pytest.approx((0.1, 0.007))
    (note,) = found["notes"]
    assert "length mm -> m, time ms -> s, u mm/s -> m/s, v mm/s -> m/s" in note["text"]
