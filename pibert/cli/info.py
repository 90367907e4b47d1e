"""``pibert info``: versions, models and shipped weights."""

import platform

from rich.console import Console
from rich.table import Table

from pibert.cli.options import Json
from pibert.cli.terminal import say, show_json


def info(as_json: Json = False) -> None:
    """Show versions, the models with their presets and sizes, and the shipped weights.

    Example: pibert info
    """
    import numpy
    import torch

    from pibert import __version__
    from pibert.fields import FieldSpec
    from pibert.models import PRESETS, build_model, count_parameters
    from pibert.predictor import shipped_models

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {
        "pibert": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    spec = FieldSpec(dt=1.0, family="incompressible")
    sizes: dict[str, dict[str, int | None]] = {}
    for name, presets in PRESETS.items():
        for preset in presets:
            try:
                size = count_parameters(build_model(name, preset=preset, spec=spec))
            except ImportError:
                size = None
            sizes.setdefault(name, {})[preset] = size
    threads, shipped = torch.get_num_threads(), shipped_models()
    if as_json:
        return show_json(
            {
                "versions": versions,
                "device": device,
                "threads": threads,
                "models": sizes,
                "shipped": {name: str(folder) for name, folder in shipped.items()},
            }
        )
    console = Console()
    table = Table(show_header=False, box=None)
    for name, value in (versions | {"device": f"{device}, {threads} threads"}).items():
        table.add_row(name, value)
    console.print(table)
    table = Table("model", "preset")
    table.add_column("parameters", justify="right")
    for name, presets_of in sizes.items():
        for preset, count in presets_of.items():
            table.add_row(name, preset, "not installed" if count is None else f"{count:,}")
    console.print(table)
    say(console, "Sizes are for two channels on 64 x 64 points.")
    say(console, f"Shipped weights: {', '.join(shipped) or 'none'}")
