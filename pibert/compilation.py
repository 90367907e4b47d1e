"""``torch.compile`` where it can work."""

import os
import shlex
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch


def compile_if_possible(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The compiled function, or the function itself with a note on a machine without a compiler."""
    # What the precision is was decided elsewhere, and the solver multiplies no matrices.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    if any(map(shutil.which, named or ("c++", "g++", "clang++"))):
        return torch.compile(function, **options)
    warnings.warn(
        "no C++ compiler found (g++ or clang++, or $CXX): running eagerly, not compiled",
        stacklevel=3,
    )
    return function
