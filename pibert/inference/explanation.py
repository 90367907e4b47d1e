"""What a model attends to: residuals of the equations, and PIBERT's bias, attention and gate.

Maps of tokens are (ty, tx): row and column of a token, rows growing with y. With A_ij = softmax_j(
q_i . k_j / sqrt(d) - lambda R_ij), the mean over heads, a token receives the mean of A_ij over all
queries i.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pibert.fields import FieldSpec, Normalizer
from pibert.fields.equations import has_equations, residual_sizes
from pibert.inference.model_input import ModelInput
from pibert.models.attention import Block
from pibert.models.pibert import PIBERT
from pibert.models.pibert_mr import PIBERTMR
from pibert.notes import Note

TokenModel = PIBERT | PIBERTMR
"""Models with tokens and attention over them."""
AT_ONCE = 8
"""Samples whose attention is computed together: it has as many numbers as pairs of tokens."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Maps of the caller's kind, with a batch axis if the fields have one; None if not available.

    Maps of points are on the caller's grid, maps of tokens (ty, tx) on the model's lattice.
    """

    prediction: Any
    """As ``step`` returns it."""
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
    """Share that the parameter token receives, (batch, layer)."""
    gate: float | None = None
    """Share of the Fourier branch; the rest is the wavelet branch's. A mean where it varies."""
    gate_map: Any = None
    """Where it varies, (batch, y, x)."""
    consistency: Any = None
    """Probability that the window obeys its equations, (batch,), if the head for it is trained."""
    notes: tuple[Note, ...] = ()


def residual_maps(
    spec: FieldSpec,
    normalizer: Normalizer,
    z: Float[Tensor, "b t c y x"],
    model_input: ModelInput,
) -> dict[str, Any]:
    """Size of each residual of the newest of some standardised frames."""
    if not has_equations(spec):
        return {}
    # On the CPU in double precision, which not every device has: a large mean costs digits.
    frames = normalizer.invert(z[:, -model_input.fields.shape[1] :].cpu().double())
    sizes = residual_sizes(frames, spec, model_input.parameters.cpu(), model_input.seen.cpu())
    return {
        term: model_input.map(
            model_input.regridding.map_to_caller(size.nan_to_num(), size.isfinite()), "y", "x"
        )
        for term, size in sizes.items()
    }


def token_maps(
    model: nn.Module,
    window: Float[Tensor, "b h c y x"],
    model_input: ModelInput,
    device: torch.device,
) -> dict[str, Any]:
    """Members of the explanation of a model with tokens; empty for another model."""
    if not isinstance(model, TokenModel) or not model.blocks:
        return {}
    x, chunks = window.flatten(1, 2), []
    for start in range(0, len(x), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        inputs = (v[rows].to(device) for v in (x, model_input.parameters, model_input.seen))
        with torch.autocast(device.type, enabled=False):
            chunks.append({name: v.cpu() for name, v in _token_maps(model, *inputs).items()})
    whole = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    gate = {"gate": whole.pop("gate").mean().item()} if "gate" in whole else {}
    patch = model.patch((x.shape[-2], x.shape[-1]))
    points = {"attention_map": _spread(whole["attention"].mean(1), x, patch)}
    if "bias" in whole:
        points["bias_map"] = _spread(whole["bias"], x, patch)
    if "gate_map" in whole:
        points["gate_map"] = whole.pop("gate_map")
    everywhere = torch.ones(len(x), *x.shape[-2:], dtype=torch.bool)
    regrid = model_input.regridding.map_to_caller
    return (
        gate
        | {name: model_input.map(values, *_AXES[name]) for name, values in whole.items()}
        | {name: model_input.map(regrid(v, everywhere), "y", "x") for name, v in points.items()}
    )


_AXES = {
    "bias": ("token_y", "token_x"),
    "attention": ("layer", "token_y", "token_x"),
    "parameter_attention": ("layer",),
}


@torch.no_grad()
def _token_maps(
    model: TokenModel, x: Tensor, parameters: Tensor, mask: Tensor
) -> dict[str, Tensor]:
    shape, maps = (x.shape[-2], x.shape[-1]), {}
    if isinstance(model, PIBERT):
        shares = gate_shares(model, x)
        maps["gate"] = shares["gate"][:1].expand(len(x))
        if "gate_map" in shares:
            maps |= {"gate": shares["gate_map"].mean((1, 2)), "gate_map": shares["gate_map"]}
    if model.physics_bias is not None:
        bias = model.physics_bias(x, parameters, mask, model.patch(shape))
        maps["bias"] = bias.unflatten(1, model.token_lattice(shape))
    attention = attention_maps(model, x, parameters, mask)
    maps["attention"] = attention["received"]
    if "parameter_received" in attention:
        maps["parameter_attention"] = attention["parameter_received"]
    return maps


def _spread(tokens: Float[Tensor, "b ty tx"], x: Tensor, patch: int) -> Float[Tensor, "b y x"]:
    """The value of its token at every point."""
    points = tokens.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
    return points[:, : x.shape[-2], : x.shape[-1]]


def attention_maps(
    model: TokenModel,
    x: Float[Tensor, "b c y x"],
    parameters: Float[Tensor, "b q"] | None,
    mask: Tensor | None,
    query: Int[Tensor, "b 2"] | None = None,
) -> dict[str, Tensor]:
    """The attention that every token receives, and that of one query, layer by layer.

    Args:
        model: In evaluation mode.
        x: Input of the model, as are parameters and mask.
        parameters: Of the flow.
        mask: True where known.
        query: Row and column of the token of each sample that is the query.

    Returns:
        ``received`` (b, layer, ty, tx), with a query ``attention`` of the same shape, and with a
        parameter token its share, ``parameter_received`` and ``parameter_attention`` (b, layer).
    """
    ty, tx = token_shape = model.token_lattice((x.shape[-2], x.shape[-1]))
    sample = torch.arange(len(x), device=x.device)
    token = None if query is None else (query[:, 0] * tx + query[:, 1]).to(x.device)
    names = ("received",) if query is None else ("attention", "received")
    layers: dict[str, list[Tensor]] = {name: [] for name in names}

    # One layer's weights at a time: together they would be the largest thing in memory.
    def record(block: nn.Module, inputs: tuple[Tensor, Tensor | None]) -> None:
        assert isinstance(block, Block)
        tokens, bias = inputs
        assert block.attention is not None
        weights = block.attention.weights(block.norm_attention(tokens), bias).mean(1)
        layers["received"].append(weights.mean(1))
        if token is not None:
            layers["attention"].append(weights[sample, token])

    hooks = [block.register_forward_pre_hook(record) for block in model.blocks]
    try:
        model.encode(x, parameters, mask)
    finally:
        for hook in hooks:
            hook.remove()
    maps = {}
    for name, values in layers.items():
        stacked = torch.stack(values, dim=1)  # (b, layer, n)
        maps[name] = stacked[..., : ty * tx].unflatten(-1, token_shape)
        if model.config.parameter_token:
            maps[f"parameter_{name}"] = stacked[..., -1]
    return maps


def gate_shares(model: PIBERT, x: Float[Tensor, "b c y x"]) -> dict[str, Tensor]:
    """Shares of the branches, on the grid as the encoder sees it.

    Args:
        model: In evaluation mode.
        x: Standardised, zero at unknown points.

    Returns:
        ``gate`` (2,), of Fourier and wavelet branch, means where they vary; then also ``gate_map``
        (b, y, x), of the Fourier branch.
    """
    (ny, nx), patch = x.shape[-2:], model.config.patch
    alpha = model.encoder.gate(F.pad(x, (0, -nx % patch, 0, -ny % patch), mode="replicate"))
    if not alpha.ndim:
        return {"gate": torch.stack((alpha, 1 - alpha))}
    alpha = alpha[:, 0, :ny, :nx]
    mean = alpha.mean()
    return {"gate": torch.stack((mean, 1 - mean)), "gate_map": alpha}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules of a model into evaluation mode, and restore their modes afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
