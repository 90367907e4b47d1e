"""The OpenAPI description, and requests generated from it."""

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

from pibert.serve.schemas import ARGUMENTS
from tests.serve.server_process import ServerProcess

CHECKS = (
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)


def test_every_route_is_described_with_an_example(server: ServerProcess):
    described = server.client.get("/openapi.json").json()
    routes = {"/health", "/ready", "/metrics", "/models"}
    served = ("step", "rollout", "explain", "samples", "samples/{id}", "open")
    assert set(described["paths"]) == routes | {f"/v1/{name}" for name in served}
    body = described["paths"]["/v1/step"]["post"]["requestBody"]["content"]
    kinds = {"json", "x-npy", "vnd.safetensors"}
    assert set(body) == {f"application/{kind}" for kind in kinds}
    assert "fields" in body["application/json"]["example"]
    answer = described["paths"]["/v1/step"]["post"]["responses"]["200"]["content"]
    assert answer["application/json"]["schema"] == {"$ref": "#/components/schemas/Prediction"}
    schemas = described["components"]["schemas"]
    assert {"prediction", "low", "high", "ood"} <= set(schemas["Prediction"]["properties"])
    assert {"type": "boolean"} in schemas["OutOfDistribution"]["properties"]["flagged"]["anyOf"]


def test_the_arguments_of_a_route_are_those_that_it_accepts(server: ServerProcess):
    described = server.client.get("/openapi.json").json()["paths"]
    for route, arguments in ARGUMENTS.items():
        asked = described[f"/v1/{route}"]["post"]
        schema = asked["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == {"fields", "mask", *arguments}
        assert ("steps" in schema["required"]) == (route == "rollout")
        assert {parameter["name"] for parameter in asked["parameters"]} == set(arguments)


@pytest.mark.slow
def test_generated_requests_are_answered_as_described(server: ServerProcess):
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
