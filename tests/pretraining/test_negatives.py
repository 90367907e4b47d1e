from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
import torch

from pibert.fields import Batch, FieldSpec, Grid, Normalizer, Parameter
from pibert.physics import FAMILIES
from pibert.pretraining.negatives import (
    KINDS,
    Negatives,
    NegativesConfig,
    other_parameters,
    required_history,
    wrong_orders,
)
from tests.helpers import refused
from tests.pretraining.windows import WindowSet, solver_set, street_set


def set_of(family: str, extra: int = 0) -> WindowSet:
    channels = ("u",) if family == "wave" else FAMILIES[family].channels
    needed = required_history(FieldSpec(family=family, channels=channels))
    return solver_set(family, needed + extra)


def rows(batch: Batch, chosen: slice) -> Batch:
    return batch.map(itemgetter(chosen))


@pytest.mark.parametrize(
    ("family", "channels", "frames"),
    [
        ("incompressible", ("u", "v"), 1),
        ("heat", ("u",), 2),
        ("wave", ("u",), 3),
        ("wave", ("u", "u_t"), 2),
        ("euler", ("rho", "u", "v", "p"), 2),
        (None, ("u", "v"), 1),
    ],
)
def test_the_history_that_an_equation_needs(
    family: str | None, channels: tuple[str, ...], frames: int
) -> None:
    spec = FieldSpec(family=family, channels=channels, grid=Grid.periodic((8, 8)))
    assert required_history(spec) == frames
    if frames > 1:
        with refused(f"at least {frames} frames", f"found {frames - 1}"):
            Negatives(NegativesConfig(), spec, Normalizer.identity(len(channels)), frames - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_all_kinds(family: str) -> None:
    data = set_of(family)
    negatives = data.negatives()
    expected = [kind for kind in KINDS if kind != "shuffled" or data.history > 1]
    assert list(negatives.kinds) == expected
    batch = data.samples.batch(range(0, len(data.samples), 5))
    model = data.model()
    for kind in negatives.kinds:
        x, parameters = negatives.make(kind, batch, model)
        assert x.shape == batch.x.shape and bool(x.isfinite().all())
        changed = (x - batch.x).flatten(1).abs().amax(1) > 1e-4
        if kind == "parameters":
            assert torch.equal(x, batch.x)
            changed = (parameters != batch.parameters).any(1)
        else:
            assert torch.equal(parameters, batch.parameters)
        assert bool(changed.all()), kind


@pytest.mark.parametrize("family", ["incompressible", "wave", "euler"])
def test_noise_and_shuffled_windows_keep_mean_variance_and_spectrum(family: str) -> None:
    data = set_of(family, extra=family == "incompressible")
    batch = data.samples.batch(range(0, len(data.samples), 5))
    for kind in ("noise", "shuffled"):
        x, _ = data.negatives().make(kind, batch)
        mine, theirs = (
            torch.fft.rfft2(f.double().unflatten(1, (data.history, -1))).abs().sum(1)
            for f in (x, batch.x)
        )
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.max()))


@pytest.mark.parametrize("history", [1, 2])
def test_a_negative_does_not_depend_on_its_batch(history: int) -> None:
    data = street_set(history)
    batch, model = data.samples.batch(range(0, 60, 5)), data.model()
    negatives = data.negatives()
    whole = negatives.draw(batch, model)
    pieces = [replace(rows(batch, slice(i, i + 3)), position=i) for i in range(0, 12, 3)]
    parts = [negatives.draw(piece, model) for piece in pieces]
    for made, own in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(made, torch.cat(own), rtol=1e-3, atol=1e-4)


def test_shuffled_windows_are_never_in_a_true_order() -> None:
    flow = FieldSpec(family="incompressible")
    assert wrong_orders(2, flow).tolist() == [[1, 0]] and len(wrong_orders(3, flow)) == 5
    assert len(wrong_orders(6, flow)) == 15
    assert [0, 1, 2, 3, 4, 5] not in wrong_orders(6, flow).tolist()
    wave = FieldSpec(family="wave", channels=("u",))  # may run backwards
    assert [2, 1, 0] not in wrong_orders(3, wave).tolist()
    with_rate = FieldSpec(family="wave-first-order", channels=("u", "u_t"))
    assert wrong_orders(2, with_rate).tolist() == [[1, 0]]


def test_wrong_parameters_differ_and_are_distant_if_possible() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.zeros(30, 16)
    table[:, :2] = torch.randn(30, 2, generator=generator)
    own = table.repeat(20, 1)
    share = torch.rand(600, generator=generator)
    other = other_parameters(own, table, share, 1.0)
    assert (other - own).square().sum(1).sqrt().min() >= 1.0
    assert len(other.unique(dim=0)) > 25  # all rows are chosen from
    nearest = other_parameters(own, table, share, 100.0)
    distance = torch.cdist(own, table).amax(1)
    torch.testing.assert_close((nearest - own).square().sum(1).sqrt(), distance)
    # Unknown parameters stay unknown.
    table = torch.tensor([[0.0, 1.0], [1.0, float("nan")], [2.0, 3.0]])
    other = other_parameters(
        torch.tensor([[float("nan"), 1.0], [0.0, 1.0]]), table, torch.tensor([0.9, 0.2]), 0.5
    )
    assert other[0, 0].isnan() and other[0, 1] == 3.0 and other[1].tolist() == [1.0, 1.0]


def with_parameters(batch: Batch, *rows: list[float]) -> Batch:
    parameters = torch.zeros(len(rows), 16)
    parameters[:, :2] = torch.tensor(rows)
    return replace(batch, parameters=parameters)


def test_a_sample_without_a_parameter_to_exchange_gets_noise() -> None:
    data, nan = street_set(1), float("nan")
    batch = with_parameters(
        data.samples.batch(range(4)),
        [nan, nan],  # nothing is known
        [nan, 0.3],  # known is what the table does not have
        [1.0, nan],
        [0.2, 0.3],
    )
    table = torch.zeros(3, 16)
    table[:, 0], table[:, 1] = torch.tensor([-1.0, 0.0, 1.0]), nan
    settings = NegativesConfig(kinds=("noise", "parameters"))
    negatives = Negatives(settings, data.spec, data.normalizer, 1, table)
    x, parameters = negatives.make("parameters", batch)
    noise, _ = negatives.make("noise", batch)
    torch.testing.assert_close(parameters[:2], batch.parameters[:2], equal_nan=True)
    assert torch.equal(x[:2], noise[:2]) and torch.equal(x[2:], batch.x[2:])
    assert bool((parameters[2:, 0] != batch.parameters[2:, 0]).all())


def test_kinds_that_the_data_do_not_allow_are_refused() -> None:
    spec = FieldSpec(grid=Grid((16, 16)), family=None, parameters=(Parameter(name="Re"),))
    negatives = Negatives(NegativesConfig(), spec, Normalizer.identity(2), 1, torch.zeros(3, 16))
    assert negatives.kinds == ("noise",)
    assert set(negatives.unavailable) == set(KINDS) - {"noise"}
    with pytest.raises(ValueError, match="no parameter differs"):
        Negatives(NegativesConfig(kinds=("parameters",)), spec, Normalizer.identity(2), 1)


@pytest.mark.parametrize("changes", [{"amplitude": (0.3, 0.1)}, {"kappa": 1.0}])
def test_invalid_settings_are_refused(changes: dict[str, Any]) -> None:
    with refused(*changes):
        NegativesConfig(**changes)


def test_unknown_points_stay_zero() -> None:
    data = street_set(2)
    batch = data.samples.batch(range(0, 60, 6))
    unknown = ~batch.mask[:, None].expand_as(batch.x)
    for kind in data.negatives().kinds:
        x, _ = data.negatives().make(kind, batch, data.model())
        assert bool((x[unknown] == 0).all()), kind
