"""Diagnostics of an evaluated model: its tokens and its embeddings.

Embeddings are evaluated on one lattice of tokens, that of PIBERT's default, beside three untrained
ones: those of the same model with fresh weights, and the velocity itself, as all values of a
token's patch and as their mean.

Maps of tokens are (ty, tx): row and column of a token on the lattice, rows growing with y. A token
stands for patch x patch points, or fewer at the sides of the largest y and x.

- Fourier weights. With W(k) the matrix of a mode as it is in force, the map is the root of the mean
  over its elements of |W|^2. For a real field W(-k) = conj W(k), so the map has both halves of the
  plane, (k_y, k_x) in cycles per domain with zero in the middle. Modes that are not kept are NaN:
  among them two corners, as the rows -M ... M-1 are not symmetric.
- Gate. The shares alpha and 1 - alpha of Fourier and wavelet branch.
- Residual. r_j >= 0, how badly a patch breaks the equations, of which attention subtracts
  lambda r_j from the logits of key j.
- Attention. A_ij = softmax_j(q_i . k_j / sqrt(d) - lambda R_ij), mean over heads: the row of one
  query, and what each key receives as the mean over all queries. Either sums to one over the
  lattice and the parameter token together.
- Error. ||prediction - truth|| / ||truth|| over the known points and the channels of a token.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.alignment import Embedding, alignment, raw_input
from pibert.evaluation.measure import Entry, ratio
from pibert.evaluation.scores import as_number
from pibert.evaluation.scoring import seen_by, vars_of
from pibert.inference import Predictor
from pibert.inference.explanation import TokenModel, attention_maps, evaluating, gate_shares
from pibert.models.fourier import FourierBranch, kept_columns, kept_rows
from pibert.models.pibert import PIBERT, PIBERTConfig

PATCH = PIBERTConfig().patch
"""Points along the side of a token that embeddings are compared at."""
MOST = 512
"""Samples whose embeddings are fitted, evenly spread over the test split."""
Insight = tuple[dict[str, Any], dict[str, Tensor]]
"""Facts for the scores, and arrays."""


def insight(predictor: Predictor, samples: Samples, windows: Samples, row: int) -> Insight:
    """Diagnostics of a model beside its scores, of the test windows that all models are scored on.

    ``windows`` are the same frames with the history that the model was trained with; ``row`` is the
    sample whose tokens are kept.
    """
    card: dict[str, Any] = {}
    arrays: dict[str, Tensor] = {}
    model = predictor.model
    if predictor.spec.velocity is None or not isinstance(model, TokenModel):
        return card, arrays
    seen = seen_by(predictor, samples, [row])
    if model.blocks:
        tokens = token_diagnostics(model, seen.x, seen.parameters, seen.mask)
        arrays |= {f"tokens/{name}": value for name, value in tokens.items()}
    with torch.no_grad():
        embedded = model.embed(seen.x, seen.parameters, seen.mask)
    size = model.config.patch if isinstance(model, PIBERT) else 1
    patch = PATCH if PATCH % size == 0 else size
    facts = {
        "layer": model.embedded,
        "width": embedded.shape[1],
        "patch": patch,
        "samples": min(MOST, len(windows)),
    }
    try:
        curves = _alignments(predictor, model, windows, patch)
    except ValueError as error:  # such as a test split that is too short to be divided
        card["embedding"] = facts | {"entries": [], "values": [], "missing": str(error)}
        return card, arrays
    arrays |= {
        name: torch.tensor(list(by_scale.values()), dtype=torch.float64)
        for name, by_scale in curves.items()
    }
    entries = [
        Entry(metric=f"{name}_r2", component=f"scale {scale}", better="none")
        for name, by_scale in curves.items()
        for scale in by_scale
    ]
    values = [as_number(value) for by_scale in curves.values() for value in by_scale.values()]
    card["embedding"] = facts | {"entries": [vars_of(e) for e in entries], "values": values}
    return card, arrays


def _alignments(
    predictor: Predictor, model: TokenModel, samples: Samples, patch: int
) -> dict[str, dict[int, float]]:
    """R^2 by scale, of the model and of the untrained embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = type(model)(model.config, model.spec).to(predictor.device)
    kinds: dict[str, TokenModel | Embedding] = {
        "alignment": model,
        "alignment_untrained": fresh,
        "alignment_input": raw_input(predictor.spec, patch),
        "alignment_input_mean": raw_input(predictor.spec),
    }
    return {
        name: alignment(kind, samples, patch=patch, most=MOST, device=predictor.device)
        for name, kind in kinds.items()
    }


@torch.no_grad()
def token_diagnostics(
    model: TokenModel,
    x: Float[Tensor, "b c y x"],
    parameters: Float[Tensor, "b q"] | None = None,
    mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """The diagnostics of a few samples; the model is left as it was.

    Args:
        model: In training or evaluation mode; it is run in the latter.
        x: Standardised fields, as the model takes them.
        parameters: As the model takes them.
        mask: Known points of x, as the model takes them.

    Returns:
        ``token_shape`` (2,) and ``patch`` ();
        ``fourier_rms`` (ky, kx) with ``fourier_ky`` and ``fourier_kx``, with a Fourier branch;
        of the published model ``gate`` (2,), shares of Fourier and wavelet branch, means where they
        vary, and then also ``gate_map`` (b, y, x), the share of the Fourier branch;
        ``residual`` (b, ty, tx), with a physics bias;
        ``query`` (b, 2), the token whose attention is shown: that of the largest residual, or the
        middle one without a physics bias;
        ``attention`` and ``received`` (b, layer, ty, tx), and with a parameter token
        ``parameter_attention`` and ``parameter_received`` (b, layer), its share of both, and
        ``parameter_position_norm`` ().
    """
    shape = (x.shape[-2], x.shape[-1])
    patch, token_shape = model.patch(shape), model.token_lattice(shape)
    maps = {"token_shape": torch.tensor(token_shape), "patch": torch.tensor(patch)}
    if isinstance(model, PIBERT) and model.encoder.fourier is not None:
        padded = (token_shape[0] * patch, token_shape[1] * patch)
        rms, ky, kx = fourier_weight_rms(model.encoder.fourier, padded)
        maps |= {"fourier_rms": rms, "fourier_ky": ky, "fourier_kx": kx}
    if isinstance(model, PIBERT) and model.config.parameter_token:
        maps["parameter_position_norm"] = model.positions[-1].norm()
    with evaluating(model):
        clean = model.prepared(x, parameters, mask)
        if isinstance(model, PIBERT):
            maps |= gate_shares(model, clean)
        if model.physics_bias is not None:
            residual = model.physics_bias(clean, parameters, mask, patch)
            maps["residual"] = residual.unflatten(1, token_shape)
        maps["query"] = _query_tokens(maps.get("residual"), len(x), token_shape)
        maps |= attention_maps(model, x, parameters, mask, maps["query"])
    return {name: value.detach().cpu() for name, value in maps.items()}


def token_errors(
    prediction: Float[Tensor, "*b c y x"],
    truth: Float[Tensor, "*b c y x"],
    known: Bool[Tensor, "*b y x"],
    patch: int,
) -> Float[Tensor, "*b ty tx"]:
    """Relative L2 error over the known points of every token.

    NaN for tokens without a known point, or with nothing but zeros there.
    """
    truth = torch.where(known[..., None, :, :], truth.double(), 0.0)
    error = torch.where(known[..., None, :, :], prediction.double(), 0.0) - truth
    above, below = (_token_sums(field.square().sum(-3), patch) for field in (error, truth))
    return ratio(above, below).sqrt()


def _token_sums(values: Tensor, patch: int) -> Tensor:
    """Over the points of every token, (*b, y, x) to (*b, ty, tx)."""
    ny, nx = values.shape[-2:]
    values = F.pad(values, (0, -nx % patch, 0, -ny % patch))
    return values.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch)).sum((-3, -1))


def fourier_weight_rms(
    branch: FourierBranch, shape: tuple[int, int]
) -> tuple[Float[Tensor, "ky kx"], Int[Tensor, " ky"], Int[Tensor, " kx"]]:
    """Size of the weights of every mode on a grid of some shape, and the two axes.

    Args:
        branch: Of the encoder.
        shape: Rows and columns of the grid that it works on.
    """
    ny, nx = shape
    weight = branch.weights(shape).detach().double()  # (r, k, c, d, 2)
    up, down = kept_rows(branch.modes, ny)
    rows = torch.cat((torch.arange(up), torch.arange(-down, 0))) % ny
    columns = torch.arange(kept_columns(branch.columns, nx))
    size = torch.full((ny, nx), torch.nan, dtype=torch.float64)
    size[rows[:, None], columns[None]] = weight.square().sum(-1).mean((-2, -1)).sqrt().cpu()
    mirrored = size.flip(0, 1).roll((1, 1), (0, 1))  # the value at -k, modulo the grid
    # A column that is its own mirror image keeps a mode only with its partner.
    own_mirror = 2 * torch.arange(nx) % nx == 0
    alone = torch.where(own_mirror, torch.nan, torch.where(size.isnan(), mirrored, size))
    size = torch.where(size.isnan() | mirrored.isnan(), alone, size)
    size = torch.fft.fftshift(size)
    ky, kx = torch.arange(ny) - ny // 2, torch.arange(nx) - nx // 2
    in_y, in_x = (~size.isnan()).any(1), (~size.isnan()).any(0)
    return size[in_y][:, in_x], ky[in_y], kx[in_x]


def _query_tokens(
    residual: Tensor | None, count: int, token_shape: tuple[int, int]
) -> Int[Tensor, "b 2"]:
    """Row and column of the query of every sample."""
    ty, tx = token_shape
    if residual is None:
        return torch.tensor([[ty // 2, tx // 2]]).expand(count, 2)
    largest = residual.flatten(1).argmax(1)
    return torch.stack((largest // tx, largest % tx), dim=1)
