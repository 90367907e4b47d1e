"""``pibert config``: the settings of an experiment, resolved and explained."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibert.cli.options import json_option, option
from pibert.cli.terminal import show_json

if TYPE_CHECKING:
    from pibert.experiments import Experiment

app = typer.Typer(no_args_is_help=True)

Settings = Annotated[
    list[str] | None,
    option(
        "Change a setting, such as --set training.epochs=10; none means no value. Repeatable.",
        "--set",
        metavar="NAME=VALUE",
    ),
]


@app.callback()
def main() -> None:
    """Show and explain the settings of an experiment.

    Example: pibert config show --config configs/demo.toml
    """


@app.command()
def show(
    config: Annotated[
        Path | None,
        option("Read a TOML file or a run folder. Default: show the default settings."),
    ] = None,
    settings: Settings = None,
    as_json: Annotated[bool, json_option("Print JSON instead of TOML.")] = False,
) -> None:
    """Print all settings of an experiment, defaults included, as a reusable TOML file.

    Example: pibert config show --config configs/demo.toml --set training.epochs=10
    """
    from pibert.config import as_plain

    plain = as_plain(read_experiment(config, settings or []))
    if as_json:
        return show_json(plain)
    print(to_toml(plain))


@app.command("list")
def list_settings(
    section: Annotated[
        str, typer.Argument(help="List only this section, such as training. Default: all.")
    ] = "",
) -> None:
    """List the settings with their default, kind and meaning; ? marks a required one.

    Set one for a run: pibert train --config FILE --out RUN --set NAME=VALUE

    Example: pibert config list training
    """
    from pibert.config import schema
    from pibert.experiments import Experiment

    everything = schema(Experiment)
    listed = [s for s in everything if not section or f"{s.name}.".startswith(f"{section}.")]
    if not listed:
        known = dict.fromkeys(setting.name.split(".")[0] for setting in everything)
        raise ValueError(f"there is no section {section!r}; choose from: {', '.join(known)}")
    for setting in listed:
        meaning = f"; {setting.meaning}" if setting.meaning else ""
        print(f"{setting.name} = {setting.default or '?'}  # {setting.kind}{meaning}")


def read_experiment(path: Path | None, settings: list[str]) -> "Experiment":
    """Return the experiment of a TOML file or run, or the default one, with changed settings."""
    from pibert.config import overridden, parse, with_overrides
    from pibert.experiments import Experiment, load_experiment
    from pibert.experiments.run_folder import read_config

    if path is None:
        # The source of the data has no default; the smallest case stands for it.
        stated = any(text.startswith(("data.case=", "data.path=")) for text in settings)
        data = {} if stated else {"data": {"case": "cylinder"}}
        return parse(Experiment, overridden(data, settings))
    if path.is_dir() or path.suffix == ".json":
        stored = path / "config.json" if path.is_dir() else path
        return with_overrides(parse(Experiment, read_config(stored)["experiment"]), settings)
    return load_experiment(path, tuple(settings))


def to_toml(plain: Mapping[str, Any]) -> str:
    """Return plain settings as TOML; None becomes the word that means no value."""
    return "\n".join(_lines(plain, "")).strip()


def _lines(table: Mapping[str, Any], where: str) -> Iterator[str]:
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in table.items() if key not in sections}
    if where and (values or not sections):
        yield f"\n[{where}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in sections.items():
        yield from _lines(value, f"{where}.{_key(key)}" if where else _key(key))


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    from pibert.config import NONE_WORD

    if isinstance(value, list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, float):
        return repr(value)  # also inf, which JSON would call Infinity
    return json.dumps(NONE_WORD if value is None else value, ensure_ascii=False)
