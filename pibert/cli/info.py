"""``pibert info``: versions and models."""

import platform

from rich.console import Console
from rich.table import Table

from pibert.cli.terminal import say


def info() -> None:
    """Show versions, and the models with their presets and sizes.

    Example: pibert info
    """
    import numpy
    import torch

    from pibert import __version__
    from pibert.fields import FieldSpec
    from pibert.models import PRESETS, build_model, count_parameters

    console = Console()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = Table(show_header=False, box=None)
    for name, value in {
        "pibert": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "device": f"{device}, {torch.get_num_threads()} threads",
    }.items():
        versions.add_row(name, value)
    console.print(versions)
    models = Table("model", "preset")
    models.add_column("parameters", justify="right")
    spec = FieldSpec(dt=1.0, family="incompressible")
    for name, presets in PRESETS.items():
        for preset in presets:
            try:
                size = f"{count_parameters(build_model(name, preset=preset, spec=spec)):,}"
            except ImportError:
                size = "not installed"
            models.add_row(name, preset, size)
    console.print(models)
    say(console, "Sizes are for two channels on 64 x 64 points.")
