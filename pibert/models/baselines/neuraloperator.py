"""Models of the package ``neuralop`` (on PyPI: neuraloperator), run as they are.

``NeuralOperator`` builds ``neuralop.models.<name>`` with the options given to it and the numbers of
channels filled in. It adds what every model here has: checked inputs, unknown points as zero,
parameters as constant channels if wished, and the skip from the last frame. With ``residual`` the
last layer of the model's ``projection`` starts at zero, where it has one: an untrained model is
then persistence (``starts_as_persistence``). Under autocast the models run in the precision of
their weights; in float64 ``neuralop`` does its spectral sums in single precision.

The presets have about as many parameters as PIBERT: FNO 1,509,662, TFNO 1,552,392, UNO 1,614,422
with version 2.0.0 of the package, for two channels in and out, a complex number counted as two.

Reference: J. Kossaifi et al., A library for learning neural operators, 2024. The package is the
extra ``bench``; it is imported when a model is built.
"""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Self

import torch
from torch import nn

from pibert.fields import FieldSpec
from pibert.models.layers import Answer, Fields, Parameters
from pibert.models.stepper import Stepper, StepperConfig, zero


@dataclass(frozen=True, kw_only=True, slots=True)
class NeuralOperatorConfig(StepperConfig):
    """Which model, and what it is built with."""

    name: str = "FNO"
    """A class of ``neuralop.models`` that takes ``in_channels`` and ``out_channels``."""
    options: dict[str, Any] = field(
        default_factory=lambda: {"n_modes": [16, 16], "hidden_channels": 36}
    )
    """Passed to the class unchanged; the numbers of channels are filled in."""
    parameters: bool = False
    """Let the flow's parameters enter as constant channels."""

    def __post_init__(self) -> None:
        StepperConfig.__post_init__(self)
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
        self.num_parameters = len(spec.parameters) if config.parameters else 0
        make = _find_class(config.name)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # UNO prints its options
                self.operator = make(
                    in_channels=self.in_channels + self.num_parameters,
                    out_channels=self.out_channels,
                    **config.options,
                )
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"expected options that neuralop.models.{config.name} takes, found "
                f"{config.options}: {error}"
            ) from error
        last = _last_layer(self.operator)
        self.starts_as_persistence = bool(config.residual and last is not None)
        """Whether the untrained model repeats the last frame."""
        if config.residual and last is not None:
            zero(last)
        self.register_state_dict_post_hook(_drop_build_options)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        if self.num_parameters:
            known = parameters[:, : self.num_parameters, None, None]
            x = torch.cat((x, known.expand(-1, -1, *x.shape[-2:])), dim=1)
        if len(x) == 0:  # Fourier transforms of nothing are refused
            return x.new_zeros(0, self.out_channels, *x.shape[-2:])
        with torch.autocast(x.device.type, enabled=False):
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            return self.operator(x)

    def double(self) -> Self:
        """Weights in double precision, also complex ones, which torch leaves as they are."""
        super().double()
        for weight in self.parameters():
            if weight.is_complex():
                weight.data = weight.data.to(torch.complex128)
        return self


def _find_class(name: str) -> type[nn.Module]:
    models = _package()
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


def _package() -> ModuleType:
    try:
        from neuralop import models
    except ImportError as error:
        raise ImportError(
            "models of neuralop need the package neuraloperator; install it with "
            f"pip install 'pibert-cfd[bench]' ({error})"
        ) from error
    return models


def _last_layer(operator: nn.Module) -> nn.Module | None:
    """The last convolution or linear layer of a model's projection, if there is one."""
    projection = getattr(operator, "projection", None)
    if not isinstance(projection, nn.Module):
        return None
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    layers = [layer for layer in projection.modules() if isinstance(layer, kinds)]
    return layers[-1] if layers else None


def _drop_build_options(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]
) -> None:
    """The package puts a model's build options among its weights; here the config holds them."""
    state.pop("_metadata", None)
