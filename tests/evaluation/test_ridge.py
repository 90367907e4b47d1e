"""Ridge regression from sums: the closed form on rows, and features that carry nothing."""

import pytest
import torch

from pibert.evaluation.ridge import Moments, held_out_r2


def test_the_fit_from_sums_is_the_closed_form_on_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(5, 5, generator=generator, dtype=torch.float64) + 1e3
    y = x[:, :2].sin() + 0.2 * x[:, 3:] + 40.0
    moments = Moments.of(x[:7], y[:7])
    for part in (slice(7, 8), slice(8, 60)):
        moments = moments.merged(Moments.of(x[part], y[part]))
    assert moments.count == 60
    seen, held = slice(0, 60), slice(60, 90)
    mean, std = x[seen].mean(0), x[seen].std(0, correction=0)
    z = (x - mean) / std
    alpha = 2.5
    beta = torch.linalg.solve(
        z[seen].T @ z[seen] + alpha * torch.eye(5).double(),
        z[seen].T @ (y[seen] - y[seen].mean(0)),
    )
    assert torch.allclose(moments.fit(alpha), beta / std[:, None], rtol=1e-8)
    error = y[held] - y[seen].mean(0) - z[held] @ beta
    expected = 1 - error.square().sum(0) / (y[held] - y[held].mean(0)).square().sum(0)
    assert torch.allclose(Moments.of(x[held], y[held]).r2(moments, alpha), expected, rtol=1e-7)


def test_features_that_do_not_vary_or_depend_on_each_other_do_no_harm() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.ones(3, 1).double()
    spoilt = torch.cat((x, x.sum(1, keepdim=True), torch.full((200, 1), 0.1).double()), dim=1)
    spoilt[:, -1] += 1e-9 * torch.randn(200, generator=generator)
    fitted, judged = (Moments.of(spoilt[p], y[p]) for p in (slice(0, 100), slice(100, 200)))
    for alpha in (0.0, 1e-3):
        assert float(judged.r2(fitted, alpha)) == pytest.approx(1.0, abs=1e-6)
    still = Moments.of(x[:50], torch.ones(50, 1).double())
    assert still.r2(still, 1e-3).isnan().all()


def test_the_strength_is_the_one_that_serves_the_halves_of_the_fitted_rows_best() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(120, 30, generator=generator, dtype=torch.float64)
    noise = torch.randn(120, 1, generator=generator, dtype=torch.float64)
    y = x[:, :1] + 0.5 * noise
    parts = [Moments.of(x[p], y[p]) for p in (slice(0, 40), slice(40, 80), slice(80, 120))]
    choices = (1e-3, 10.0, 1e9)
    mutual = [float((parts[0].r2(parts[1], a) + parts[1].r2(parts[0], a))[0]) for a in choices]
    assert mutual.index(max(mutual)) == 1
    found = held_out_r2(parts[2:], parts[:2], choices)
    assert torch.allclose(found, parts[2].r2(parts[0].merged(parts[1]), 10.0))
    # Rows that are judged have no say: whatever is best on them, the choice stays.
    spoilt = Moments.of(x[80:], torch.randn(40, 1, generator=generator, dtype=torch.float64))
    found = held_out_r2([spoilt], parts[:2], choices)
    assert torch.allclose(found, spoilt.r2(parts[0].merged(parts[1]), 10.0))
    # With one part there is nothing to choose by.
    assert torch.allclose(held_out_r2(parts[2:], parts[:1], choices), parts[2].r2(parts[0], 1e-3))
