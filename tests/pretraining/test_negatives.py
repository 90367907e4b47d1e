from dataclasses import replace
from operator import itemgetter

import pytest
import torch

from pibert.fields import Batch, FieldSpec, Grid, Normalizer, Parameter
from pibert.physics import FAMILIES
from pibert.pretraining import phases
from pibert.pretraining.exchanges import other_parameters, wrong_orders
from pibert.pretraining.negatives import KINDS, Negatives, NegativesConfig, required_history
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
        ("incompressible-momentum", ("u", "v", "p"), 1),
        ("heat", ("u",), 2),
        ("wave", ("u",), 3),
        ("wave", ("u", "u_t"), 2),
        ("wave-first-order", ("u", "u_t"), 2),
        ("gray-scott", ("a", "b"), 2),
        ("euler", ("rho", "u", "v", "p"), 2),
        (None, ("u", "v"), 1),
    ],
)
def test_the_history_that_an_equation_needs(
    family: str | None, channels: tuple[str, ...], frames: int
) -> None:
    assert required_history(FieldSpec(family=family, channels=channels)) == frames


def test_a_history_too_short_to_judge_the_equation_is_refused() -> None:
    spec = FieldSpec(family="wave", channels=("u",), grid=Grid.periodic((8, 8)))
    with pytest.raises(ValueError, match="at least 3 frames .* found 2; give the model more"):
        Negatives(NegativesConfig(), spec, Normalizer.identity(1), 2)


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
def test_a_negative_does_not_depend_on_its_company(history: int) -> None:
    data = street_set(history)
    batch, model = data.samples.batch(range(0, 60, 5)), data.model()
    negatives = data.negatives()
    whole = negatives.draw(batch, model)
    pieces = [replace(rows(batch, slice(i, i + 3)), place=i) for i in range(0, 12, 3)]
    parts = [negatives.draw(piece, model) for piece in pieces]
    for made, own in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(made, torch.cat(own), rtol=1e-3, atol=1e-4)


def test_another_epoch_draws_other_negatives_and_every_kind() -> None:
    data = street_set(2)
    batch, negatives, model = data.samples.batch(range(40)), data.negatives(), data.model()
    first, _ = negatives.draw(batch, model)
    second, _ = negatives.draw(batch.reseeded(0, 1), model)
    assert not bool((first == second).flatten(1).all(1).all())
    for kind in negatives.kinds:
        x, parameters = negatives.make(kind, batch, model)
        alike = (x - first).flatten(1).abs().amax(1) < 1e-4
        if kind == "parameters":
            alike = alike & (parameters != batch.parameters).any(1)
        assert 1 <= int(alike.sum()) < 25, kind


def test_unknown_points_stay_zero() -> None:
    data = street_set(2)
    batch = data.samples.batch(range(0, 60, 6))
    unknown = ~batch.mask[:, None].expand_as(batch.x)
    for kind in data.negatives().kinds:
        x, _ = data.negatives().make(kind, batch, data.model())
        assert bool((x[unknown] == 0).all()), kind


@pytest.mark.parametrize("kind", ["noise", "boundary", "omitted"])
def test_an_amplitude_is_the_relative_change(kind: str) -> None:
    data = street_set(1)
    batch, negatives = data.samples.batch(range(0, 90, 9)), data.negatives()
    assert negatives.has_amplitude(kind)  # type: ignore[arg-type]
    x, _ = negatives.make(kind, batch, amplitude=0.1)  # type: ignore[arg-type]
    known = batch.mask[:, None].expand_as(x)
    change = torch.where(known, x - batch.x, 0.0).square().sum((1, 2, 3)).sqrt()
    mean = batch.x.sum((2, 3), keepdim=True) / batch.mask.sum((1, 2))[:, None, None, None]
    own = torch.where(known, batch.x - mean, 0.0).square().sum((1, 2, 3)).sqrt()
    torch.testing.assert_close(change / own, torch.full((10,), 0.1), rtol=0.12, atol=0.0)


def test_drawn_amplitudes_fill_their_range() -> None:
    data = solver_set("heat", 2)
    batch = data.samples.batch(range(len(data.samples)))
    x, _ = data.negatives(amplitude=(0.05, 0.2)).make("noise", batch)
    own = batch.x.var((2, 3), correction=0).mean(1)
    change = ((x - batch.x).square().mean((1, 2, 3)) / own).sqrt()
    assert 0.049 < change.min() < 0.06 and 0.16 < change.max() < 0.201


@pytest.mark.parametrize("history", [1, 2])
def test_a_flow_at_rest_gives_finite_windows(history: int) -> None:
    data = street_set(history)
    batch = data.samples.batch(range(3))
    rest = torch.tensor(data.normalizer.mean) / torch.tensor(data.normalizer.std)
    still = -rest.repeat(history)[:, None, None].expand_as(batch.x)
    batch = replace(batch, x=torch.where(batch.mask[:, None], still, 0.0))
    for kind in data.negatives().kinds:
        x, _ = data.negatives().make(kind, batch, data.model())
        assert bool(x.isfinite().all()), kind


def test_shuffled_windows_are_never_in_the_true_order() -> None:
    flow = FieldSpec(family="incompressible")
    assert wrong_orders(2, flow).tolist() == [[1, 0]]
    assert len(wrong_orders(3, flow)) == 5
    assert len(wrong_orders(6, flow)) == 15
    assert [0, 1, 2, 3, 4, 5] not in wrong_orders(6, flow).tolist()


def test_a_wave_that_runs_backwards_is_not_called_wrong() -> None:
    wave = FieldSpec(family="wave", channels=("u",))
    assert [2, 1, 0] not in wrong_orders(3, wave).tolist()
    with_rate = FieldSpec(family="wave-first-order", channels=("u", "u_t"))
    assert wrong_orders(2, with_rate).tolist() == [[1, 0]]


def test_parameters_are_never_a_samples_own_and_far_where_there_are_such() -> None:
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


def test_unknown_parameters_stay_unknown() -> None:
    table = torch.tensor([[0.0, 1.0], [1.0, float("nan")], [2.0, 3.0]])
    own = torch.tensor([[float("nan"), 1.0], [0.0, 1.0]])
    other = other_parameters(own, table, torch.tensor([0.9, 0.2]), 0.5)
    assert other[0, 0].isnan() and other[0, 1] == 3.0
    assert other[1].tolist() == [1.0, 1.0]


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


def test_samples_may_lack_parameters_that_all_of_the_table_has() -> None:
    data, nan = street_set(1), float("nan")
    batch = with_parameters(data.samples.batch(range(2)), [nan, 0.0], [0.2, 0.0])
    table = data.samples.parameters
    told = Negatives(
        NegativesConfig(), data.spec, data.normalizer, 1, table, unknown_parameters=True
    )
    x, _ = told.make("parameters", batch)
    assert torch.equal(x[:1], told.make("noise", batch)[0][:1]) and torch.equal(x[1:], batch.x[1:])


def test_wrong_boundaries_are_the_same_in_all_frames() -> None:
    data = solver_set("heat", 2)
    batch = data.samples.batch(range(6))
    x, _ = data.negatives().make("boundary", batch, None, 0.1)
    change = (x - batch.x).unflatten(1, (2, -1))
    assert float(change.abs().amax()) > 0.01
    torch.testing.assert_close(change[:, 0], change[:, 1], atol=1e-5, rtol=0)


def test_an_omitted_term_changes_a_window_by_no_more_than_its_fluctuation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = solver_set("heat", 2)
    batch, negatives = data.samples.batch(range(6)), data.negatives()
    draw = torch.randn(6, 1, *data.spec.grid.shape, generator=torch.Generator().manual_seed(0))
    _, own = phases.moments(batch.x[:, 1:], batch.mask)
    for size in (1e3, 1e-3):
        monkeypatch.setattr(negatives._omission, "change", lambda *_, size=size: size * draw)
        change = (negatives.make("omitted", batch)[0] - batch.x)[:, 1:]
        if size > 1:
            found = change.square().mean((2, 3), keepdim=True).sqrt()
            torch.testing.assert_close(found, own, rtol=1e-3, atol=0.0)
        else:  # and is not made larger than it is
            torch.testing.assert_close(change, size * draw, atol=1e-6, rtol=0)


def test_what_the_data_do_not_allow_is_said() -> None:
    spec = FieldSpec(grid=Grid((16, 16)), family=None, parameters=(Parameter(name="Re"),))
    negatives = Negatives(NegativesConfig(), spec, Normalizer.identity(2), 1, torch.zeros(3, 16))
    assert negatives.kinds == ("noise",)
    assert set(negatives.unavailable) == set(KINDS) - {"noise"}
    with pytest.raises(ValueError, match="no parameter differs"):
        Negatives(NegativesConfig(kinds=("parameters",)), spec, Normalizer.identity(2), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ("noise", "nois")}, "unknown kind of negative 'nois'"),
        ({"kinds": ("noise", "noise")}, "kinds that differ"),
        ({"amplitude": (0.3, 0.1)}, "lower end first"),
        ({"kappa": 1.0}, "kappa must be above 1"),
        ({"adversarial_steps": -1}, "0 or more"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    # The shape hook refuses a kind that is no Literal before our own check can.
    with pytest.raises(Exception, match=f"{message}|Type-check error"):
        NegativesConfig(**settings)  # type: ignore[arg-type]
