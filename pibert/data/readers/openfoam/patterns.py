"""Regular expressions in quoted keywords, such as ``"(upper|lower)Wall.*"``.

They come from the files. Python's ``re`` tries all ways to match, which takes forever with some
patterns; here a pattern becomes a list of steps, and all steps that can be reached are followed at
once (K. Thompson, CACM 11, 419, 1968): the time is that of steps times letters.
"""

import re
import warnings
from functools import lru_cache

_TOKEN = re.compile(r"\[\^?\]?[^\]]*\]|\\.|\{\d{1,3}(?:,\d{0,3})?\}|.", re.DOTALL)
_MOST_STEPS = 5000
_MOST_GROUPS = 50

_Step = tuple[re.Pattern[str] | None, tuple[int, ...]]
"""What a letter must match, and how many steps on it goes; without a letter, several ways on."""


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a whole name; a malformed pattern matches nothing.

    Raises:
        ValueError: If the pattern is too long.
    """
    try:
        steps = _compile(pattern)
    except re.error:
        return False
    here = _reached(steps, {0})
    for letter in name:
        tests = ((place, steps[place][0]) for place in here if place < len(steps))
        here = _reached(steps, {place + 1 for place, test in tests if test and test.match(letter)})
    return len(steps) in here


def _reached(steps: list[_Step], places: set[int]) -> set[int]:
    """The places that can be reached without a letter."""
    seen: set[int] = set()
    left = list(places)
    while left:
        place = left.pop()
        if place not in seen:
            seen.add(place)
            if place < len(steps) and steps[place][0] is None:
                left += [place + on for on in steps[place][1]]
    return seen


@lru_cache
def _compile(pattern: str) -> list[_Step]:
    tokens = _TOKEN.findall(pattern)
    if tokens.count("(") > _MOST_GROUPS:
        raise ValueError(f"the pattern {pattern[:40]!r} has more than {_MOST_GROUPS} groups")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets within sets
        steps = _alternatives(tokens[::-1])
    return steps


def _alternatives(left: list[str], *, inside: bool = False) -> list[_Step]:
    """The steps up to the end or the closing bracket; ``left`` is a stack of tokens."""
    found = _sequence(left)
    while left and left[-1] == "|":
        left.pop()
        other = _sequence(left)
        found = [(None, (1, len(found) + 2)), *found, (None, (len(other) + 1,)), *other]
        _check(found)
    if bool(left) != inside:
        raise re.error("unbalanced brackets")
    return found


def _sequence(left: list[str]) -> list[_Step]:
    found: list[_Step] = []
    while left and left[-1] not in "|)":
        one = _atom(left)
        while left and left[-1][0] in "*+?{" and left[-1] != "{":
            one = _check(_repeated(one, left.pop()))
        found += one
        _check(found)
    return found


def _atom(left: list[str]) -> list[_Step]:
    token = left.pop()
    if token == "(":
        inner = _alternatives(left, inside=True)
        left.pop()
        return inner
    if token in ("^", "$"):
        return []  # a pattern matches whole names in any case
    if token in "*+?{[":
        raise re.error(f"unexpected {token}")
    if token[0] == "[":
        return [(re.compile("[" + token[1:].replace("[", "\\["), re.DOTALL), (1,))]
    is_plain = len(token) == 1 and token != "."
    return [(re.compile(re.escape(token) if is_plain else token, re.DOTALL), (1,))]


def _repeated(one: list[_Step], how: str) -> list[_Step]:
    if how == "?":
        return [(None, (1, len(one) + 1)), *one]
    if how == "+":
        return [*one, (None, (-len(one), 1))]
    if how == "*":
        return [(None, (1, len(one) + 2)), *one, (None, (-len(one) - 1,))]
    least, comma, most = how[1:-1].partition(",")
    _check(one * max(int(least), int(most or 0)))
    if not comma:
        return one * int(least)
    if not most:
        return one * int(least) + _repeated(one, "*")
    return one * int(least) + _repeated(one, "?") * (int(most) - int(least))


def _check(steps: list[_Step]) -> list[_Step]:
    if len(steps) > _MOST_STEPS:
        raise ValueError(f"a pattern has more than {_MOST_STEPS} steps; name the patches instead")
    return steps
