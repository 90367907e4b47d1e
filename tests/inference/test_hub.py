"""Models on the Hugging Face hub, with the real client against a stand-in server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pibert.inference.hub import files_of, parse_address
from pibert.inference.model_file import read_model
from tests import standins
from tests.command import refusal, well
from tests.helpers import refused
from tests.inference.hub_server import Hub, serving

pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def call(hub: Hub, tmp_path: Path) -> Iterator[Any]:
    """Runs Python or the command in a process of its own, whose hub is the stand-in."""
    standins.trained_model(tmp_path)
    with serving(hub) as address:
        environment = os.environ | {
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": "hf_stand_in",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONPATH": str(ROOT),
        }

        def run(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, *words],
                env=environment | changes,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
            )

        yield run


PUSH = """
import pibert
from pibert.inference.hub import push_model
print(push_model("runs/wake", "me/wake"))
"""
LOAD = """
import sys
import numpy as np, pibert
fields = np.nan_to_num(np.load("fields.npy"))
expected = pibert.load("runs/wake").step(fields)
for address in sys.argv[1:]:
    try:
        print(np.array_equal(pibert.load(address).step(fields), expected))
    except ValueError as error:
        print(error)
"""


def test_a_model_is_pushed_and_loaded_by_its_address(call: Any, hub: Hub) -> None:
    pushed = call("-c", PUSH)
    assert pushed.returncode == 0, pushed.stderr
    address, commit = pushed.stdout.strip(), hub.branches["me/wake"]["main"]
    assert address == f"hf://me/wake@{commit}" and hub.private["me/wake"]
    files = hub.commits["me/wake"][commit]
    assert set(files) == {"model.safetensors", "model.json", "README.md", "checksums.json"}
    # A later upload changes the branch, not the commit.
    damaged = {"model.safetensors": files["model.safetensors"][:-4] + b"\0\0\0\0"}
    hub.commit("me/wake", "main", damaged)
    loaded = call("-c", LOAD, address, "hf://me/wake", "hf://me/nothing")
    assert loaded.returncode == 0, loaded.stderr
    pinned, changed, absent = loaded.stdout.splitlines()
    assert pinned == "True"
    assert "expected model.safetensors with SHA-256" in changed
    assert absent.startswith("hf://me/nothing: the hub") and "hf auth login" in absent


def test_a_model_card_edited_on_the_hub_does_not_stop_the_model(call: Any, hub: Hub) -> None:
    assert call("-c", PUSH).returncode == 0
    hub.commit("me/wake", "main", {"README.md": b"license: mit"})
    loaded = call("-c", LOAD, "hf://me/wake")
    assert loaded.stdout.strip() == "True", loaded.stdout + loaded.stderr


@pytest.mark.parametrize("words", [("push", "runs/wake", "me/wake"), ("serve", "hf://me/wake@v2")])
def test_a_hub_out_of_reach_is_named_with_the_remedy(words: tuple[str, ...], call: Any) -> None:
    done = call("-m", "pibert", *words, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert f"{words[-1].removeprefix('hf://')}: the hub" in done.stderr, done.stderr
    assert "HF_ENDPOINT" in done.stderr and "Traceback" not in done.stderr


def test_an_upload_needs_an_owner_and_a_name() -> None:
    assert "OWNER/NAME" in refusal("push", "cylinder-mr", "noslash", "--dry-run")


def test_the_upload_can_be_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    standins.trained_model(tmp_path)
    found = json.loads(well("push", "runs/wake", "me/wake", "--dry-run", "--json").stdout)
    assert set(found["files"]) == {"model.safetensors", "model.json", "README.md", "checksums.json"}


def test_the_card_states_fields_weights_and_use(tmp_path: Path) -> None:
    standins.trained_model(tmp_path)
    folder = tmp_path / "runs" / "wake"
    card = read_model(folder).card
    files = files_of(folder, card, "me/wake")
    text = files["README.md"].decode()
    assert card["weights"]["sha256"] in text and 'pibert.load("hf://me/wake")' in text
    assert all(name in text for name in card["units"])
    sums = json.loads(files["checksums.json"])
    assert set(sums) == set(files) - {"checksums.json"}


@pytest.mark.parametrize("text", ["hf://", "hf://me", "hf://me/a/b", "hf://me/a@", "hf://../a b"])
def test_addresses_that_name_no_repository_are_refused(text: str) -> None:
    with refused("OWNER/NAME"):
        parse_address(text)


def test_addresses_name_a_repository_and_a_revision() -> None:
    assert parse_address("hf://me/wake") == ("me/wake", None)
    assert parse_address("hf:/me/wake@v1.0") == ("me/wake", "v1.0")  # as a path prints it
