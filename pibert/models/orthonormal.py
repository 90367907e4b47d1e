"""Orthonormal columns by construction, in real arithmetic so that it compiles and exports."""

import torch
from jaxtyping import Float
from torch import Tensor


def orthonormal_columns(
    weight: Float[Tensor, "*batch c d 2"],
) -> Float[Tensor, "*batch c d 2"]:
    """Orthonormalise the c complex vectors of length d (last axis: real, imaginary).

    Gram-Schmidt, each vector projected twice against the ones before it: the second pass brings
    the orthogonality of nearly dependent columns back to round-off. The result spans the same
    space and is a smooth function of the weight, so gradients flow through it.
    """
    num_columns, length = weight.shape[-3], weight.shape[-2]
    if num_columns > length:
        raise ValueError(
            f"{num_columns} orthonormal columns need at least that many rows, found {length}"
        )
    columns: list[Tensor] = []
    for index in range(num_columns):
        column = weight[..., index, :, :]  # (*batch, d, 2)
        for _ in range(2 if columns else 0):
            basis = torch.stack(columns, dim=-3)  # (*batch, j, d, 2)
            re = torch.einsum("...jdz,...dz->...j", basis, column)
            im = torch.einsum("...jd,...d->...j", basis[..., 0], column[..., 1]) - torch.einsum(
                "...jd,...d->...j", basis[..., 1], column[..., 0]
            )
            shadow_re = torch.einsum("...j,...jdz->...dz", re, basis)
            turned = torch.stack((-basis[..., 1], basis[..., 0]), dim=-1)  # i times the basis
            column = column - shadow_re - torch.einsum("...j,...jdz->...dz", im, turned)
        columns.append(column / column.square().sum((-2, -1), keepdim=True).sqrt())
    return torch.stack(columns, dim=-3)
