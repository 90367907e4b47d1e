"""Models on the Hugging Face hub: ``hf://OWNER/NAME``, or ``hf://OWNER/NAME@REVISION``.

A repository holds the files of a model folder, a README made from the card, and ``checksums.json``
with the SHA-256 of each file. Only these files are fetched: weights are safetensors, and nothing
that could hold code. Files that do not match their checksum are refused, and ``read_model``
compares the weights with the fingerprint in the card. Needs huggingface_hub (extra ``hub``), whose
cache keeps what was fetched; ``HF_ENDPOINT`` names another hub.
"""

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pibert import __version__
from pibert.data.wording import import_extra
from pibert.files import parse_json, read_text
from pibert.inference.calibration_file import SHEET, TENSORS
from pibert.inference.model_file import CARD, WEIGHTS, Card, find_model, read_model, stated_in

FILES = (WEIGHTS, CARD, SHEET, TENSORS)
"""Files of a model folder that travel; the last two where there is a calibration."""
CHECKSUMS, README = "checksums.json", "README.md"
_ADDRESS = re.compile(r"hf:/{1,2}(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


class HubError(ValueError):
    """A transfer that failed; the message gives the remedy."""


class Address(NamedTuple):
    """A repository, and its branch, tag or commit; None: the main branch."""

    repo: str
    revision: str | None = None


def parse_address(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION, found {text!r}")
    return Address(match["repo"], match["revision"])


def fetch_model(address: str) -> Path:
    """Fetch the files of a model, or find them in the cache; returns their folder."""
    repo, revision = parse_address(address)
    with _library(address) as library:
        folder = Path(
            library.snapshot_download(
                repo, revision=revision, allow_patterns=[*FILES, CHECKSUMS, README]
            )
        )
    if not (folder / WEIGHTS).is_file():
        raise HubError(
            f"{address}: expected a repository with {WEIGHTS}, found none; pibert push makes one"
        )
    _verify(folder, address)
    return folder


def _verify(folder: Path, address: str) -> None:
    """Compare the files with their checksums; repositories that others made may have none."""
    if not (folder / CHECKSUMS).is_file():
        return
    stated = parse_json(read_text(folder / CHECKSUMS))
    for name, expected in stated.items() if isinstance(stated, dict) else ():
        if name not in FILES:
            continue  # the README may be edited on the hub
        found = _sha256(folder / name) if (folder / name).is_file() else "no such file"
        if found != expected:
            raise HubError(
                f"{address}: expected {name} with SHA-256 {str(expected)[:12]}, found "
                f"{found[:12]}; remove it from the cache ({folder}) and load it again, or ask its "
                "owner"
            )


def push_model(
    model: Path | str,
    repo: str,
    *,
    private: bool = True,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Upload a model to the hub, with a README made from its card; returns its address.

    Args:
        model: A run, a model folder, or the name of a shipped model.
        repo: OWNER/NAME; it is made if it does not exist. Log in first: ``hf auth login``.
        private: Whether a new repository is private.
        revision: The branch to upload to; the main branch if not given.
        message: Of the commit.
    """
    parse_address(f"hf://{repo}")
    folder = find_model(model)
    card = read_model(folder).card  # also checks that the model can be read
    source = folder if folder.is_dir() else folder.parent
    with (
        _library(f"hf://{repo}") as library,
        tempfile.TemporaryDirectory(prefix="pibert-") as staged,
    ):
        for name, content in files_of(source, card, repo).items():
            Path(staged, name).write_bytes(content)
        api = library.HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            folder_path=staged,
            revision=revision,
            commit_message=message or f"Upload {card['model']['name']} with pibert {__version__}",
        )
    return f"hf://{repo}@{done.oid}"


def files_of(folder: Path, card: Card, repo: str) -> dict[str, bytes]:
    """The content of every file of the repository."""
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    files[README] = describe(card, repo, calibrated=SHEET in files).encode()
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return files | {CHECKSUMS: (json.dumps(sums, indent=1) + "\n").encode()}


def describe(card: Card, repo: str, *, calibrated: bool) -> str:
    """The model card: what the model is, what it was trained on, how good it is, how to use it."""
    spec, model = card["spec"], card["model"]["name"]
    experiment = stated_in(card, "provenance", "experiment")
    data = stated_in(experiment, "data")
    source = data.get("path") or " ".join(filter(None, (data.get("case"), data.get("preset"))))
    rows, columns = spec["grid"]["shape"]
    parameters = ", ".join(p["name"] for p in spec["parameters"]) or "none"
    units = ", ".join(f"{name} ({unit})" for name, unit in card["units"].items())
    trained = [head for head, is_trained in card["trained"].items() if is_trained]
    lines = [
        *("---", "library_name: pibert", "tags: [pibert, fluid-dynamics, surrogate]", "---", ""),
        f"# {repo.partition('/')[2]}",
        "",
        f"A {model} model that steps flow fields forward in time, made with PIBERT {__version__}.",
        "",
        "| | |",
        "| --- | --- |",
        f"| fields | {units} |",
        f"| grid | {rows} x {columns} points, spacing {spec['grid']['dx']:g} x "
        f"{spec['grid']['dy']:g} |",
        f"| time step | {'not stated' if spec.get('dt') is None else format(spec['dt'], 'g')} |",
        f"| flow parameters | {parameters} |",
        f"| weights | {card['weights']['parameters']:,} numbers, SHA-256 "
        f"{card['weights']['sha256']} |",
        f"| trained for | {', '.join(trained) or 'nothing'} |",
        f"| training data | {source or 'not stated'} |",
        f"| prediction intervals | {'calibrated' if calibrated else 'no calibration'} |",
        "",
        *_metrics(card),
        "## Use",
        "",
        "```python",
        "import pibert",
        "",
        f'model = pibert.load("hf://{repo}")',
        "frames = model.rollout(fields, steps=50)  # fields: (time, channel, y, x), physical units",
        "```",
        "",
        "The model is meant for flows like its training data, with the same units and time step.",
    ]
    return "\n".join(lines) + "\n"


def _metrics(card: Card) -> list[str]:
    numbers = {
        name: value
        for name, value in stated_in(card, "metrics").items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not numbers:
        return []
    rows = [f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in numbers.items()]
    return ["## Validation", "", "| | |", "| --- | --: |", *rows, ""]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _library(address: str) -> Iterator[Any]:
    """The client of the hub, whose errors name the address."""
    library = import_extra("huggingface_hub", "models on the Hugging Face hub", extra="hub")
    try:
        yield library
    except Exception as error:
        homes = [kind.__module__ for kind in type(error).__mro__]
        if not any(home.startswith(("huggingface_hub", "httpx", "requests")) for home in homes):
            raise  # httpx: also httpx2, which later versions of the client use
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise HubError(
            f"{address}: the hub refused or cannot be reached ({reason}); check the name, the "
            "network and HF_ENDPOINT, and log in if the repository is private (hf auth login)"
        ) from error
