"""``pibert info``: versions and models."""

import platform

from rich.console import Console
from rich.table import Table


def info() -> None:
    """Show versions, and the models with their presets and sizes.

    Example: pibert info
    """
    import numpy
    import torch

    from pibert import __version__
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
    for name, presets in PRESETS.items():
        for preset in presets:
            count = count_parameters(build_model(name, preset=preset))
            models.add_row(name, preset, f"{count:,}")
    console.print(models)
