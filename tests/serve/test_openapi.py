"""The OpenAPI description, and requests drawn from it against a real server."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serve.server_process import ServerProcess

CHECKS = (
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)


def test_every_route_is_described_with_an_example(server: ServerProcess):
    described = server.client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/health",
        "/ready",
        "/metrics",
        "/models",
        "/v1/step",
        "/v1/rollout",
        "/v1/explain",
        "/v1/samples",
        "/v1/samples/{id}",
        "/v1/open",
    }
    body = described["paths"]["/v1/step"]["post"]["requestBody"]["content"]
    assert set(body) == {
        "application/json",
        "application/x-npy",
        "application/vnd.safetensors",
    }
    assert "fields" in body["application/json"]["example"]
    answer = described["paths"]["/v1/step"]["post"]["responses"]["200"]["content"]
    alarm = answer["application/json"]["schema"]["properties"]["alarm"]["properties"]
    assert {"type": "boolean"} in alarm["raised"]["anyOf"]


@pytest.mark.slow
def test_requests_drawn_from_the_description_are_answered_as_it_says(server: ServerProcess):
    address = f"http://127.0.0.1:{server.port}"
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    found: list[Any] = list(schema.get_all_operations())
    drawn = [operation.ok().as_strategy() for operation in found]

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.one_of(drawn))
    def run(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=address, checks=list(CHECKS))

    run()
    assert server.is_alive
