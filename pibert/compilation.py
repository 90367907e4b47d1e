"""``torch.compile`` where it can work."""

import os
import shlex
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch


def compile_if_possible(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function; without a C++ compiler, warn and return the function itself."""
    # The precision is set elsewhere, and the solver multiplies no matrices.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    if any(map(shutil.which, named or ("c++", "g++", "clang++"))):
        return torch.compile(function, **options)
    warnings.warn(
        "no C++ compiler found (g++ or clang++, or $CXX): running eagerly, not compiled",
        stacklevel=3,
    )
    return function
