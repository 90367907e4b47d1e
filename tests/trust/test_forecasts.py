"""Windows of recorded flows, and the truth that follows them."""

from dataclasses import replace

import torch

from pibert.data.dataset import Window
from pibert.trust.forecasts import read_windows
from tests.trust.flows import BODY, SHAPE, flows, samples_of, spec_of


def test_filled_points_are_given_but_are_no_truth_to_calibrate_on() -> None:
    (wave,) = flows(1)
    filled = torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(0)) < 0.3
    samples = samples_of([replace(wave, filled=filled)], Window(history=2, horizon=3))
    windows = read_windows(samples, [4], spec_of())
    assert torch.equal(windows.known[0], (~BODY).expand(2, *SHAPE))
    assert torch.equal(windows.fields[0], wave.read(slice(4, 6)))
    measured = ~filled[6:9] & ~BODY
    assert torch.equal(windows.truth[0].isfinite().all(1), measured)
    assert torch.equal(windows.truth[0].isfinite().any(1), measured)
