"""What a model looked at: residuals of the equations, and PIBERT's bias, attention and gate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Normalizer
from pibert.models.pibert import PIBERT
from pibert.physics.sizes import has_equations, residual_sizes
from pibert.predictor.given import Given
from pibert.predictor.tokens import TokenModel, attention_maps, gate_shares

AT_ONCE = 8
"""Samples whose attention is looked at together: it has as many numbers as pairs of tokens."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Maps of the caller's kind, with a batch axis as the fields; None for what a model has not.

    Maps of points are on the caller's grid, maps of tokens (ty, tx) on the model's lattice.
    """

    prediction: Any
    """What ``step`` gives."""
    input_residuals: Mapping[str, Any]
    """By the name of each term of the PDE family: its size in physical units, (batch, y, x), of the
    newest frame. NaN where a stencil meets unknown points. Empty without a family."""
    prediction_residuals: Mapping[str, Any]
    """Of the first predicted frame. Both use as many frames as the shorter of history and equation
    has; with too few time derivatives are left out."""
    bias: Any = None
    """r_j per patch, of which attention subtracts lambda r_j, (batch, ty, tx)."""
    bias_map: Any = None
    """The same at every point, (batch, y, x)."""
    attention: Any = None
    """Share that each patch receives, mean over queries and heads, (batch, layer, ty, tx)."""
    attention_map: Any = None
    """Mean over layers at every point, (batch, y, x)."""
    parameter_attention: Any = None
    """What the parameter token receives, (batch, layer)."""
    gate: float | None = None
    """Share of the Fourier branch; the rest is that of the frame branch. A mean where it varies."""
    gate_map: Any = None
    """Where it varies, (batch, y, x)."""
    consistency: Any = None
    """Probability that the window obeys its equations, (batch,), if the head for it is trained."""


def residual_maps(
    spec: FieldSpec,
    normalizer: Normalizer,
    z: Float[Tensor, "b t c y x"],
    given: Given,
) -> dict[str, Any]:
    """Size of each residual of the newest of some standardised frames."""
    if not has_equations(spec):
        return {}
    # In double precision, which not every device has: a large mean has eaten digits before.
    frames = normalizer.invert(z[:, -given.fields.shape[1] :].cpu().double())
    sizes = residual_sizes(frames, spec, given.parameters.cpu(), given.seen.cpu())
    return {
        term: given.map(
            given.regridding.map_to_caller(size.nan_to_num(), size.isfinite()), "y", "x"
        )
        for term, size in sizes.items()
    }


def token_maps(
    model: nn.Module, window: Float[Tensor, "b h c y x"], given: Given, device: torch.device
) -> dict[str, Any]:
    """Members of the explanation of a model with tokens; empty for another model."""
    if not isinstance(model, TokenModel):
        return {}
    x, parts = window.flatten(1, 2), []
    for start in range(0, len(x), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        inputs = (v[part].to(device) for v in (x, given.parameters, given.seen))
        with torch.autocast(device.type, enabled=False):
            seen = _look(model, *inputs)
        parts.append({name: value.cpu() for name, value in seen.items()})
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    gates = {"gate": whole.pop("gate").mean().item()} if "gate" in whole else {}
    patch = model.patch((x.shape[-2], x.shape[-1]))
    points = {"attention_map": _spread(whole["attention"].mean(1), x, patch)}
    if "bias" in whole:
        points["bias_map"] = _spread(whole["bias"], x, patch)
    if "gate_map" in whole:
        points["gate_map"] = whole.pop("gate_map")
    everywhere = torch.ones(len(x), *x.shape[-2:], dtype=torch.bool)
    regrid = given.regridding.map_to_caller
    return (
        gates
        | {name: given.map(values, *_AXES[name]) for name, values in whole.items()}
        | {name: given.map(regrid(v, everywhere), "y", "x") for name, v in points.items()}
    )


_AXES = {
    "bias": ("token_y", "token_x"),
    "attention": ("layer", "token_y", "token_x"),
    "parameter_attention": ("layer",),
}


@torch.no_grad()
def _look(model: TokenModel, x: Tensor, parameters: Tensor, mask: Tensor) -> dict[str, Tensor]:
    shape, found = (x.shape[-2], x.shape[-1]), {}
    if isinstance(model, PIBERT):
        shares = gate_shares(model, x)
        found = {"gate": shares["gate"][:1].expand(len(x))}
        if "gate_map" in shares:
            found = {"gate": shares["gate_map"].mean((1, 2)), "gate_map": shares["gate_map"]}
    if model.physics_bias is not None:
        bias = model.physics_bias(x, parameters, mask, model.patch(shape))
        found["bias"] = bias.unflatten(1, model.token_lattice(shape))
    attention = attention_maps(model, x, parameters, mask)
    found["attention"] = attention["received"]
    if "parameter_received" in attention:
        found["parameter_attention"] = attention["parameter_received"]
    return found


def _spread(tokens: Float[Tensor, "b ty tx"], x: Tensor, patch: int) -> Float[Tensor, "b y x"]:
    """The number of its token at every point."""
    points = tokens.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
    return points[:, : x.shape[-2], : x.shape[-1]]
