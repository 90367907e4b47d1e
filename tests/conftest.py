"""Settings for every test process, and the type checker that the shape hook uses.

Nothing of pibert is imported here: it would be loaded before the checker is in place.
"""

import os
from typing import Any, Self

import torch

try:
    from beartype import BeartypeConf, FrozenDict, beartype
except ImportError:
    # A machine that was not set up by the Makefile: pytest -o addopts= runs without the hook.
    pass
else:
    # The hook decorates methods one by one, where beartype has no class to resolve typing.Self to;
    # that hint alone is let through.
    check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any})))


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Worker processes share the cores; threads on top of them only fight.
        torch.set_num_threads(1)
