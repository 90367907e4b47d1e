"""Unchanged models of the package ``neuralop`` (on PyPI: neuraloperator).

``NeuralOperator`` builds ``neuralop.models.<name>`` with the given options and adds input checks,
unknown points as zero, optional parameters, and the skip connection from the last frame. With
``residual`` the last layer of the model's ``projection``, if it has one, starts at zero: an
untrained model is then persistence. Under autocast the models run in the precision of their
weights; in float64 ``neuralop`` does its spectral sums in single precision.

The presets have about as many parameters as PIBERT: FNO 1,509,662, TFNO 1,552,392, UNO 1,614,422
with version 2.0.0 of the package, for two channels in and out, a complex number counted as two.

Reference: J. Kossaifi et al., A library for learning neural operators, 2024. The package is in the
extra ``bench`` and is imported when a model is built.
"""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn

from pibert.fields import FieldSpec
from pibert.models.layers import Answer, Fields, Parameters, full_precision
from pibert.models.stepper import BaselineConfig, Stepper, zero


@dataclass(frozen=True, kw_only=True, slots=True)
class NeuralOperatorConfig(BaselineConfig):
    """The class of the model and its options."""

    name: str = "FNO"
    """A class of ``neuralop.models`` that takes ``in_channels`` and ``out_channels``."""
    options: dict[str, Any] = field(
        default_factory=lambda: {"n_modes": [16, 16], "hidden_channels": 36}
    )
    """Passed to the class unchanged; the numbers of channels are filled in."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        taken = sorted({"in_channels", "out_channels"} & set(self.options))
        if taken:
            raise ValueError(
                f"expected options without {' and '.join(taken)}, which follow from the data, "
                f"found {self.options}"
            )


PRESETS: dict[str, NeuralOperatorConfig] = {
    "base": NeuralOperatorConfig(),
    "tfno": NeuralOperatorConfig(
        name="TFNO", options={"n_modes": [32, 32], "hidden_channels": 58, "rank": 0.1}
    ),
    "uno": NeuralOperatorConfig(
        name="UNO",
        options={
            "hidden_channels": 32,
            "n_layers": 4,
            "uno_out_channels": [28, 56, 56, 28],
            "uno_n_modes": [[16, 16], [8, 8], [8, 8], [16, 16]],
            "uno_scalings": [[0.5, 0.5], [1, 1], [1, 1], [2, 2]],
            "channel_mlp_skip": "linear",
        },
    ),
}


class NeuralOperator(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    def __init__(self, config: NeuralOperatorConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        make = _find_class(config.name)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # UNO prints its options
                self.operator = make(
                    in_channels=self.num_inputs + self.num_parameters,
                    out_channels=self.out_channels,
                    **config.options,
                )
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"expected options that neuralop.models.{config.name} takes, found "
                f"{config.options}: {error}"
            ) from error
        projection = getattr(self.operator, "projection", nn.Identity())
        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
        layers = [layer for layer in projection.modules() if isinstance(layer, kinds)]
        if config.residual and layers:
            zero(layers[-1])
        self.register_state_dict_post_hook(_drop_build_options)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        if len(x) == 0:  # torch refuses Fourier transforms of empty tensors
            return x.new_zeros(0, self.out_channels, *x.shape[-2:])
        with torch.autocast(x.device.type, enabled=False):
            return self.operator(full_precision(self.with_parameters(x, parameters)))

    def double(self) -> Self:
        """Convert all weights to double precision, also complex ones, which torch leaves alone."""
        super().double()
        for weight in self.parameters():
            if weight.is_complex():
                weight.data = weight.data.to(torch.complex128)
        return self


def _find_class(name: str) -> type[nn.Module]:
    try:
        from neuralop import models
    except ImportError as error:
        raise ImportError(
            "models of neuralop need the package neuraloperator; install it with "
            f"pip install 'pibert-cfd[bench]' ({error})"
        ) from error
    known = {
        key: value
        for key, value in vars(models).items()
        if isinstance(value, type) and issubclass(value, nn.Module)
    }
    if name not in known:
        raise ValueError(
            f"expected the name of a model of neuralop, found {name!r}; "
            f"choose from: {', '.join(sorted(known))}"
        )
    return known[name]


def _drop_build_options(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]
) -> None:
    """Remove the build options that the package stores among the weights."""
    state.pop("_metadata", None)
