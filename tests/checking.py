"""The shape checker of the tests: jaxtyping's import hook, at a fraction of its cost.

The hook decorates every function of the package with ``jaxtyping.jaxtyped``. That takes two
milliseconds per function, and ten microseconds per call of one that has no array among its
arguments. ``install`` puts a decorator in its place that does the work at the first call, and
leaves functions without shapes in their annotations to beartype alone. The checks are the same.

Nothing of pibert is imported here: it would be loaded before the checker is in place.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Self, get_args

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import AbstractArray, TypeCheckError, config

# The hook decorates methods one by one, where beartype has no class to resolve typing.Self to; that
# hint alone is let through. A wrong type is the TypeError that it is without a checker.
check = beartype(
    conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any}), violation_type=TypeCheckError)
)
_jaxtyped = jaxtyping.jaxtyped
_MARK = "__checked__"


def install() -> None:
    setattr(jaxtyping, "jaxtyped", checked)  # noqa: B010


def checked(fn: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Check a function, or what makes an object of a data class, at its calls."""
    if fn is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and not hasattr(fn.__init__, _MARK):
            setattr(fn, "__init__", checked(fn.__init__, typechecker=typechecker))  # noqa: B010
        return fn
    if not isinstance(fn, FunctionType):
        return _jaxtyped(fn, typechecker=typechecker)
    made: Any = None

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if made is None:
            has_shapes = any(map(_has_shapes, fn.__annotations__.values()))
            made = _jaxtyped(fn, typechecker=typechecker) if has_shapes else typechecker(fn)
        return made(*args, **kwargs)

    setattr(call, _MARK, True)
    return call


def _has_shapes(hint: Any) -> bool:
    """Whether a hint names the shape of an array, or is a text, which may."""
    if isinstance(hint, str) or (inspect.isclass(hint) and issubclass(hint, AbstractArray)):
        return True
    parts = hint if isinstance(hint, list | tuple) else get_args(hint)
    return any(map(_has_shapes, parts))
