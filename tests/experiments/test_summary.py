"""What a run says of its flows before it starts."""

from dataclasses import replace

import torch

from pibert.data.splits import Segment, Split
from pibert.experiments.flows import Flows
from pibert.experiments.summary import one_flow_note
from pibert.fields import Normalizer
from tests.data.helpers import make_trajectory


def flows_split(split: Split) -> Flows:
    """Three flows of eight frames; the third has a gap in time after five."""
    found = [make_trajectory(name, frames=8, dt=0.5) for name in ("a", "b", "c")]
    times = 0.5 * torch.tensor([0, 1, 2, 3, 4, 9, 10, 11], dtype=torch.float64)
    found[2] = replace(found[2], time=times)
    return Flows(tuple(found), split, Normalizer.identity(2), found[0].spec, {})


def test_the_longest_stretch_of_a_split_ends_at_gaps_in_time() -> None:
    flows = flows_split(Split((Segment(0, 0, 3),), (), (Segment(0, 4, 7),), (Segment(2),)))
    found = [flows.longest(name) for name in ("train", "valid", "calibration", "test")]
    assert found == [3, 0, 3, 5]


def test_scores_that_rest_on_one_flow_are_noted() -> None:
    by_flow = one_flow_note(flows_split(Split((Segment(0),), (Segment(1),), (), (Segment(2),))))
    assert by_flow is not None and "'c'" in by_flow.text and "split_seed" in by_flow.remedy
    in_time = Split((Segment(0, 0, 5),), (Segment(0, 5, 6),), (), (Segment(0, 6),))
    same = one_flow_note(flows_split(in_time))
    assert same is not None and "also trains the model" in same.text
    assert (
        one_flow_note(flows_split(Split((Segment(0),), (), (), (Segment(1), Segment(2))))) is None
    )
