"""The folder of a comparison: it holds one, and goes on with that one alone."""

import json
from pathlib import Path
from typing import Any, get_type_hints

from pibert import config
from pibert.comparison.plan import Comparison, Entrant
from pibert.data.partial import replace_file
from pibert.experiments.experiment import DataConfig
from pibert.textfiles import read_json

NAME = "comparison.json"


def settle(comparison: Comparison, out: Path) -> None:
    """Make the folder this comparison's; another's is refused."""
    asked = refuse_other(comparison, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / NAME, (json.dumps(asked, indent=1) + "\n").encode())


def refuse_other(comparison: Comparison, out: Path) -> dict[str, Any]:
    """Refuse a folder that holds another comparison; gives what is to be recorded.

    Entrants, data sets and seeds may be added or left out; what they share must not change, and
    neither may an entrant or a data set under its old name.
    """
    path, asked = out / NAME, config.as_plain(comparison)
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the comparison")
    if path.exists():
        there, kinds = _read(path), get_type_hints(Comparison)
        for what, kind in (("entrants", Entrant), ("data", DataConfig)):
            for name in sorted(set(there[what]) & set(asked[what])):
                if _as_read_today(there[what][name], kind) != asked[what][name]:
                    raise ValueError(
                        f"{out}: {what[:-1] if what == 'entrants' else 'data set'} {name!r} was "
                        "another one there; choose another folder, or another name"
                    )
        for name in sorted(set(asked) - {"entrants", "data", "seeds"}):
            if _as_read_today(there.get(name), kinds[name]) != asked[name]:
                raise ValueError(
                    f"{out} holds another comparison: {name} is {there.get(name)!r} there and "
                    f"{asked[name]!r} here; choose another folder"
                )
        for what in ("entrants", "data"):
            asked[what] = {**there[what], **asked[what]}
    elif out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and no comparison; choose another folder")
    return dict(asked)


def _as_read_today(value: Any, kind: Any) -> Any:
    """A recorded setting; what is new in it since then has its default."""
    try:
        return config.as_plain(config.as_kind(value, kind))
    except ValueError:  # it differs, and the caller says so
        return value


def _read(path: Path) -> dict[str, dict[str, object]]:
    try:
        content = read_json(path)
        if not isinstance(content, dict) or not {"entrants", "data"} <= set(content):
            raise ValueError("expected entrants and data in it")
    except ValueError as error:
        raise ValueError(
            f"{path}: not the record of a comparison ({error}); choose another folder"
        ) from None
    return content
