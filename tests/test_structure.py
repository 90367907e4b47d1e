import json

import pytest
import torch

from pibert.fields import FieldSpec, Grid, MovingBody, Normalizer, with_uniform_state
from pibert.rollout import MovingBodies, Rollout

GRID = Grid((12, 20), dx=0.5, dy=0.25, origin=(-3.0, -1.375))
BODY = MovingBody(radius=0.6, centre=(-0.5, 0.0), displacement="y")


def coupled(**changes: object) -> FieldSpec:
    known = {"channels": ("u", "v", "y", "w"), "state": ("y", "w"), "grid": GRID, "bodies": (BODY,)}
    return FieldSpec(**(known | changes))  # type: ignore[arg-type]


def test_state_and_bodies_survive_json_and_older_specs_have_none() -> None:
    spec = coupled()
    assert FieldSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    plain = FieldSpec(channels=("u", "v"))
    assert not {"state", "bodies"} & set(plain.to_dict())
    assert FieldSpec.from_dict(plain.to_dict()).state == ()
    assert spec.of_fields.channels == ("u", "v")
    assert spec.moving == (BODY,)
    assert spec.of_fields.moving == ()


def test_state_that_is_not_last_or_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="last channels"):
        coupled(channels=("u", "y", "w", "v"))
    with pytest.raises(ValueError, match="at least one"):
        coupled(channels=("y", "w"))
    with pytest.raises(ValueError, match="radius"):
        MovingBody(radius=0.0)


def test_points_inside_a_body_follow_its_displacement() -> None:
    moved = torch.tensor([0.0, 0.5], dtype=torch.float64)
    inside = BODY.inside(GRID, moved)
    x, y = GRID.coordinates(torch.float64)
    for mask, shift in zip(inside, (0.0, 0.5), strict=True):
        assert torch.equal(mask, (x + 0.5) ** 2 + (y - shift) ** 2 < 0.36)
    # Half a unit is two rows.
    assert torch.equal(inside[1, 2:], inside[0, :-2])
    sideways = MovingBody(radius=0.6, centre=(-0.5, 0.0), axis="x", unit=0.5)
    assert torch.equal(sideways.inside(GRID, 2 * moved)[1][:, 1:], inside[0][:, :-1])


def test_a_body_is_outside_when_it_crosses_the_edge_of_the_domain() -> None:
    # The domain reaches from -1.5 to 1.5; the body of radius 0.6 touches its edge at 0.9.
    places = torch.tensor([0.0, 0.89, 0.91, -0.89, -0.91, torch.nan])
    assert BODY.is_outside(GRID, places).tolist() == [False, False, True, False, True, True]


def test_uniform_state_is_the_mean_over_known_points() -> None:
    frames = torch.zeros(1, 3, 2, 2)
    frames[0, 2] = torch.tensor([[1.0, 5.0], [3.0, torch.nan]])
    known = torch.tensor([[[True, True], [True, False]]])
    found = with_uniform_state(frames, 1, known)
    assert torch.equal(found[0, 2], torch.full((2, 2), 3.0))
    assert torch.equal(found[0, :2], frames[0, :2])


def oscillator(x: torch.Tensor, turn: float) -> torch.Tensor:
    """Exact dynamics of a frame (u, v, y, w): the state turns, the fields count the steps."""
    y, w = x[:, 2], x[:, 3]
    cosine, sine = torch.cos(torch.tensor(turn)), torch.sin(torch.tensor(turn))
    return torch.stack((x[:, 0] + 1, x[:, 1], cosine * y + sine * w, cosine * w - sine * y), 1)


def test_rollout_of_exact_dynamics_moves_the_mask_exactly() -> None:
    spec, turn = coupled(), 0.3
    moving = MovingBodies.of(spec, Normalizer((0.0, 0.0, 0.1, 0.0), (1.0, 1.0, 0.2, 0.2)))
    assert moving is not None
    gap = torch.zeros(1, *GRID.shape, dtype=torch.bool)
    gap[:, :2, :3] = True  # unknown for another reason, in all frames

    def body(step: int) -> torch.Tensor:
        return BODY.inside(GRID, 0.1 + 0.6 * torch.cos(torch.tensor([turn * step])))

    known = ~body(0) & ~gap
    x = torch.ones(1, 4, *GRID.shape)
    x[:, 2], x[:, 3] = 3.0, 0.0  # 0.6 about a mean of 0.1, in units of 0.2
    rollout = Rollout(torch.where(known[:, None], x, 0.0), known, channels=4, moving=moving)
    always = known.clone()
    for step in range(12):
        fields, seen = rollout.x, rollout.known
        always &= seen
        assert torch.equal(seen, ~body(step) & ~gap)
        wanted = torch.full_like(fields[:, 2], 3 * float(torch.cos(torch.tensor(turn * step))))
        torch.testing.assert_close(fields[:, 2], wanted, atol=1e-5, rtol=1e-5)
        assert torch.all(fields[:, 0][always] == 1 + step)
        if step:  # also where the body was a step before
            assert torch.all(fields[:, 0][seen] >= 1)
            assert torch.all(fields[:, 0][~seen] == 0)
        frames = rollout.advance(oscillator(fields, turn))
        assert torch.equal(rollout.known_in(frames)[:, 0], ~body(step + 1) & ~gap)
    assert bool((body(0) & seen).any())  # uncovered on the way
    assert moving.find_outside(frames) is None
    frames[:, 0, 2] = 30.0
    assert moving.find_outside(frames)[:2] == (0, 0)  # type: ignore[index]


def test_without_state_the_mask_stays() -> None:
    spec = coupled().of_fields
    assert MovingBodies.of(spec, Normalizer.identity(2)) is None
    known = torch.ones(1, *GRID.shape, dtype=torch.bool)
    known[:, 5, 5] = False
    rollout = Rollout(torch.ones(1, 2, *GRID.shape), known, channels=2)
    frames = rollout.advance(rollout.x + 1)
    assert torch.equal(rollout.known, known)
    assert torch.equal(rollout.known_in(frames)[:, 0], known)
