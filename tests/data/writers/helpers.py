"""Blocks of frames that the tests of writers share."""

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from pibert.data.writers.frames import Block, Description
from pibert.fields import FieldSpec, Grid

SHAPE = (5, 7)
BODY = torch.zeros(SHAPE, dtype=torch.bool)
BODY[1:3, 2:4] = True


def description(**changes: Any) -> Description:
    """A flow with pressure on non-square cells, off the origin, around a body."""
    spec = FieldSpec(
        family="incompressible",
        channels=("u", "v", "p"),
        units=("m/s", "m/s", "m^2/s^2"),
        dt=0.5,
        grid=Grid(SHAPE, dx=0.1, dy=0.3, origin=(-1.0, 2.0), body=BODY),
    )
    facts: dict[str, Any] = {
        "name": "wake <1>",
        "spec": spec,
        "local": {"prediction": {"model": "run", "weights_sha256": "0" * 64}},
        "length_unit": "m",
        "time_unit": "s",
    }
    return Description(**(facts | changes))


def fields(count: int) -> Tensor:
    """Frames with the values 100 c + 10 row + column + t / 16."""
    rows, columns = torch.meshgrid(*(torch.arange(n).float() for n in SHAPE), indexing="ij")
    channels = 100 * torch.arange(3.0)[:, None, None] + 10 * rows + columns
    return channels + torch.arange(count)[:, None, None, None] / 16


def block(start: int, stop: int, *, gap: bool = False, with_truth: bool = False) -> Block:
    """Frames of ``fields`` from a start; with a gap, one point of each is not known."""
    known = (~BODY).expand(stop - start, *SHAPE).clone()
    if gap:
        known[:, 4, 6] = False
    values = fields(stop)[start:]
    return Block(
        fields=values,
        time=10.0 + 0.5 * torch.arange(start, stop, dtype=torch.float64),
        number=torch.arange(start + 1, stop + 1),
        known=known,
        truth=torch.where(known[:, None], values + 0.25, math.nan) if with_truth else None,
    )


def image(
    path: Path, shape: tuple[int, int] = SHAPE
) -> tuple[ElementTree.Element, dict[str, np.ndarray]]:
    """The XML of a .vti and its arrays, found by offset in the raw bytes behind it."""
    head, _, rest = path.read_bytes().partition(b'<AppendedData encoding="raw">\n_')
    tree = ElementTree.fromstring(head + b"</VTKFile>")
    assert tree.get("header_type") == "UInt64" and tree.get("byte_order") == "LittleEndian"
    arrays = {}
    for entry in tree.iter("DataArray"):
        if entry.get("format") != "appended":
            continue
        start = int(entry.get("offset", "-1"))
        size = int.from_bytes(rest[start : start + 8], "little")
        kind = {"Float32": "<f4", "UInt8": "u1"}[entry.get("type", "")]
        values = np.frombuffer(rest[start + 8 : start + 8 + size], kind)
        arrays[entry.get("Name", "")] = values.reshape(*shape, -1).squeeze()
    return tree, arrays
