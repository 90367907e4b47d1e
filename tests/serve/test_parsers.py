"""Arbitrary bodies and files are read, or refused with a code."""

import io
import json
import math
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from pibert.serve.answers import (
    JSON,
    KINDS,
    NPY,
    SAFETENSORS,
    Answer,
    choose_kind,
    encode,
    frame_block,
    frame_end,
    frame_error,
    read_npy,
    read_safetensors,
    write_npy,
    write_safetensors,
)
from pibert.serve.limits import STATUS, Limits, Refusal
from pibert.serve.opened import HDF5_MAGIC, open_file
from pibert.serve.schemas import PredictRequest, read_request

LIMITS = Limits(body=100_000)
FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FIELDS = np.arange(16, dtype="<f4").reshape(1, 1, 2, 2, 4)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
names = st.sampled_from(
    ["fields", "mask", "model", "parameters", "dx", "dy", "steps", "level", "consistency", "other"]
)


def packed(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", write_npy(array))
    return stream.getvalue()


WHOLE = {
    NPY: write_npy(FIELDS),
    SAFETENSORS: write_safetensors({"fields": FIELDS}, {"model": "wake", "dx": "1", "dy": "2"}),
    JSON: json.dumps({"fields": FIELDS.tolist(), "parameters": {"Re": 1}}).encode(),
    "npz": packed(fields=FIELDS[0]),
}


def is_read_or_refused(function: Any, *arguments: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of odd headers
        try:
            found = function(*arguments)
        except Refusal as refusal:
            assert refusal.code in STATUS and "\n" not in refusal.message
            assert len(refusal.message) < 1500 and refusal.code != "internal"
        else:
            assert isinstance(found, PredictRequest | Answer)


@FUZZ
@given(
    st.dictionaries(names, anything, max_size=6), st.sampled_from(["step", "rollout", "explain"])
)
@example({"fields": [[1]], "parameters": {"Re": 10**400}}, "step")
@example({"fields": [[10**400]]}, "step")
@example({"fields": [1], "dx": 10**400, "dy": 1}, "step")
@example({"fields": [1], "consistency": 10**5000}, "step")
@example({"fields": [1], "steps": -(10**30)}, "rollout")
@example({"fields": {"a": 1}}, "step")
@example({"fields": 1.0, "dx": 1, "dy": 1}, "step")
@example({"fields": [1], "parameters": {"Re": [[1]]}}, "step")
@example({"fields": [1], "mask": [[0.5], [0.2]]}, "step")
def test_any_json_is_read_or_refused(said: dict[str, Any], route: str):
    try:
        body = json.dumps(said).encode()
    except ValueError:  # a number with more digits than Python writes
        body = b'{"fields": [1], "consistency": 1' + b"0" * 5000 + b"}"
    is_read_or_refused(read_request, route, JSON, body, [], LIMITS)


@pytest.mark.parametrize("kind", [*KINDS, "npz"])
@FUZZ
@given(st.data())
def test_any_damage_to_a_body_is_read_or_refused(kind: str, data: st.DataObject):
    damaged = bytearray(WHOLE[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    if kind in KINDS:
        is_read_or_refused(read_request, "step", kind, body, [], LIMITS)
    if not body.startswith(HDF5_MAGIC):
        is_read_or_refused(open_file, body, None, LIMITS.unpacked, 1.0)


@FUZZ
@given(st.text(max_size=60).map(lambda text: text.replace("\n", "")))
@example("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9223372036854775807, 2), }")
@example("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2), }")
@example("{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }")
@example("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }")
@example("{'descr': '|V0', 'fortran_order': False, 'shape': (1,), }")
@example("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (), }")
@example("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000000000,), }")
def test_any_header_of_an_npy_file_is_read_or_refused(header: str):
    text = header.encode("latin-1", "replace") + b"\n"
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    is_read_or_refused(read_request, "step", NPY, body, [], LIMITS)


@FUZZ
@given(st.lists(st.tuples(names, st.text(max_size=12)), max_size=4))
def test_any_query_is_read_or_refused(query: list[tuple[str, str]]):
    is_read_or_refused(read_request, "rollout", NPY, WHOLE[NPY], query, LIMITS)


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from(["channels", "units", "dt", "dx", "dy", "parameters"]),
        anything.map(json.dumps) | st.text(max_size=8),
    )
)
@example({"dx": "0", "dy": "1"})
@example({"channels": '["u"]'})
@example({"parameters": '{"Re": null}'})
@example({"dt": "NaN"})
def test_any_metadata_of_a_file_are_read_or_refused(metadata: dict[str, str]):
    body = write_safetensors({"fields": FIELDS[0]}, metadata)
    is_read_or_refused(open_file, body, None, LIMITS.unpacked, 1.0)


@FUZZ
@given(
    arrays_of.arrays(
        st.sampled_from([np.float32, np.float64]),
        arrays_of.array_shapes(min_dims=0, max_dims=5, min_side=0),
    )
)
def test_arrays_survive_a_round_trip(array: np.ndarray):
    np.testing.assert_array_equal(read_npy(write_npy(array)), array)
    fortran = np.asfortranarray(array)
    np.testing.assert_array_equal(read_npy(write_npy(fortran)), array)
    arrays, metadata = read_safetensors(write_safetensors({"x": fortran}, {"a": "b"}))
    np.testing.assert_array_equal(arrays["x"], array)
    assert metadata == {"a": "b"}


def test_json_has_null_for_nan_and_objects_for_dotted_names():
    answer = Answer(
        {"low": np.array([1.0, math.nan]), "ood.p": np.array([0.5])}, {"ood.reasons": ["x"]}
    )
    found = json.loads(encode(answer, JSON))
    assert found == {"low": [1.0, None], "ood": {"p": [0.5], "reasons": ["x"]}}


def test_a_failed_stream_ends_with_the_error():
    refusal = Refusal("diverged", "no")
    text = b'{"error":{"code":"diverged","message":"no"}}'
    assert frame_error(refusal, JSON) == text + b"\n"
    assert frame_error(refusal, NPY) == b"\xff\xff\xff\xff" + bytes([len(text), 0, 0, 0]) + text
    assert frame_end(3, JSON, "it left") == b'{"end":true,"frames":3,"diverged":"it left"}\n'
    assert b"all 3 frames were sent, but it left" in frame_end(3, NPY, "it left")
    assert frame_end(3, SAFETENSORS, "it left") == bytes(4)
    assert frame_end(3, NPY) == bytes(4)
    length, block = frame_block(Answer({"prediction": FIELDS}), NPY)
    assert len(length) == 4 and int.from_bytes(length, "little") == len(block)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, NPY),
        ("application/json", JSON),
        (f"{SAFETENSORS};q=0.5, {JSON};q=0.6", JSON),
        (f"*/*;q=0.1, {SAFETENSORS};q=0.5", SAFETENSORS),
        (f"{NPY};q=0, */*", JSON),
        ("application/x-ndjson", JSON),
    ],
)
def test_accept_is_understood(accept: str | None, kind: str):
    assert choose_kind(accept, NPY, KINDS, streams=True) == kind


@pytest.mark.parametrize("accept", ["text/html", f"{JSON};q=0", ";;,", f"{JSON};q=x"])
def test_an_unsupported_accept_header_is_refused(accept: str):
    with pytest.raises(Refusal) as refused:
        choose_kind(accept, JSON, KINDS, streams=False)
    assert refused.value.status == 406 and accept in refused.value.message


def test_an_answer_that_would_take_long_to_write_as_json_is_refused() -> None:
    large = Answer({"prediction": np.zeros((2, 500, 501), np.float32)})
    with pytest.raises(Refusal, match="500,000 .* found 501,000") as refused:
        encode(large, JSON)
    assert refused.value.status == 413
    assert len(encode(large, SAFETENSORS)) > 4 * 501_000
