"""Ridge regression from sums: the closed form on rows, and features that carry nothing."""

import pytest
import torch

from pibert.evaluation.ridge import Moments


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
