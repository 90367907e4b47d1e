"""What a PIBERT does with its tokens: attention and gate, as the model computes them.

Maps of tokens are (ty, tx): row and column of a token on the lattice, rows growing with y. With
A_ij = softmax_j(q_i . k_j / sqrt(d) - lambda R_ij), the mean over heads, a token receives the mean
of A_ij over all queries i.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pibert.models.attention import Attention, Block
from pibert.models.pibert import PIBERT
from pibert.models.pibert_mr import PIBERTMR

TokenModel = PIBERT | PIBERTMR
"""Models with tokens and attention over them."""


def attention_weights(
    attention: Attention, x: Float[Tensor, "b n d"], bias: Tensor | None = None
) -> Float[Tensor, "b h n n"]:
    """What the fused kernels do not show: each query's weights of all keys.

    Args:
        attention: Of a block.
        x: What the attention sees: tokens after the block's first norm.
        bias: On the logits, as the attention takes it.
    """
    b, n, d = x.shape
    width = d // attention.heads
    qkv = attention.qkv(x).view(b, n, 3, attention.heads, width).permute(2, 0, 3, 1, 4)
    q, k = qkv[0], qkv[1]
    logits = (q * width**-0.5) @ k.mT
    if bias is not None:
        logits = logits + (bias[:, None, None, :] if bias.ndim == 2 else bias)
    return logits.softmax(-1)


def attention_maps(
    model: TokenModel,
    x: Float[Tensor, "b c y x"],
    parameters: Float[Tensor, "b q"] | None,
    mask: Tensor | None,
    query: Int[Tensor, "b 2"] | None = None,
) -> dict[str, Tensor]:
    """What every token receives, and what one query looks at, layer by layer.

    Args:
        model: In evaluation mode.
        x: As the model takes it.
        parameters: As the model takes them.
        mask: As the model takes it.
        query: Row and column of the token of each sample that is the query.

    Returns:
        ``received`` (b, layer, ty, tx), with a query ``attention`` of the same shape, and with a
        parameter token what that one got, ``parameter_received`` and ``parameter_attention``
        (b, layer).
    """
    ty, tx = token_shape = model.token_lattice((x.shape[-2], x.shape[-1]))
    sample = torch.arange(len(x), device=x.device)
    place = None if query is None else (query[:, 0] * tx + query[:, 1]).to(x.device)
    names = ("received",) if query is None else ("attention", "received")
    layers: dict[str, list[Tensor]] = {name: [] for name in names}

    # One layer's weights at a time: together they would be the largest thing in memory.
    def look(block: nn.Module, inputs: tuple[Tensor, Tensor | None]) -> None:
        assert isinstance(block, Block)
        tokens, bias = inputs
        weights = attention_weights(block.attention, block.norm_attention(tokens), bias).mean(1)
        layers["received"].append(weights.mean(1))
        if place is not None:
            layers["attention"].append(weights[sample, place])

    hooks = [block.register_forward_pre_hook(look) for block in model.blocks]
    try:
        model.encode(x, parameters, mask)
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for name, values in layers.items():
        stacked = torch.stack(values, dim=1)  # (b, layer, n)
        found[name] = stacked[..., : ty * tx].unflatten(-1, token_shape)
        if model.config.parameter_token:
            found[f"parameter_{name}"] = stacked[..., -1]
    return found


def gate_shares(model: PIBERT, x: Float[Tensor, "b c y x"]) -> dict[str, Tensor]:
    """Shares of the branches, on the grid as the encoder sees it.

    Args:
        model: In evaluation mode.
        x: Standardised, zero at unknown points.

    Returns:
        ``gate`` (2,), of Fourier and frame branch, means where they vary; then also ``gate_map``
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
    """Every part of a model in evaluation mode, and as it was afterwards."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
