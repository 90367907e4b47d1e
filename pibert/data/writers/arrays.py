"""A block as the named arrays that programs for looking at flows want.

The velocity is one array of vectors (u, v, w), w zero where there is none; in a plane that was not
normal to z its components are along the axes of space that the source had. Every other channel is
an array of scalars, and so are the ends of error bars, ``u_low`` and ``u_high`` ... All are NaN
where the fields mean nothing, and ``valid`` is 0 there. ``body`` is 1 inside a body that the grid
states, ``filled`` where a value was put in and not measured, if there are such values.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pibert.data.writers.frames import Block, Description
from pibert.physics import derivatives


def point_arrays(block: Block, about: Description) -> dict[str, np.ndarray]:
    """By name, (t, y, x) of scalars or (t, y, x, 3) of vectors."""
    fields, spec = block.masked, about.spec
    found: dict[str, np.ndarray] = {}
    used: set[int] = set()
    if spec.velocity is not None:
        places = list(spec.velocity)
        if "w" in spec.channels:
            places.append(spec.channels.index("w"))
        vectors = torch.zeros(*fields[:, 0].shape, 3)
        vectors[..., : len(places)] = fields[:, places].movedim(1, -1)
        vectors[~block.known] = torch.nan
        found["velocity"] = vectors[..., list(about.placement.along_axes(0, 1, 2))].numpy()
        used = set(places)
    for place, name in enumerate(spec.channels):
        if place not in used:
            found[name] = fields[:, place].contiguous().numpy()
    if about.vorticity_unit is not None:
        found["vorticity"] = vorticity(block, about).numpy()
    if about.bars is not None:
        ends = block.bars
        for place, name in enumerate(about.bar_units):
            found[name] = ends[:, place].contiguous().numpy()
    found["valid"] = block.known.to(torch.uint8).numpy()
    if about.marks_filled:
        assert block.filled is not None
        found["filled"] = block.filled.to(torch.uint8).numpy()
    if spec.grid.body is not None:
        found["body"] = about.body.to(torch.uint8).expand_as(block.known).contiguous().numpy()
    return found


def vorticity(block: Block, about: Description) -> Float[Tensor, "t y x"]:
    """NaN where it is not defined."""
    spec = about.spec
    if spec.velocity is None:
        raise ValueError(
            f"expected a velocity, channels u and v of a flow, for the vorticity, found "
            f"{list(spec.channels)}; do not ask for it"
        )
    u, v = (block.fields[:, place].double() for place in spec.velocity)
    spin, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=block.known
    )
    return torch.where(defined & block.known, spin, torch.nan).float()
