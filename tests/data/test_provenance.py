"""Facts about the origin of fields."""

import pytest

from pibert.data.provenance import predicted_by, predicted_source


@pytest.mark.parametrize("name", ["interval_level", "bars_level"])
def test_the_level_of_intervals_is_read_under_its_present_and_former_name(name: str) -> None:
    source = predicted_source({"kind": "measured"}, "wake", None, 0.9)
    level = source.pop("interval_level")
    assert "wake" in (predicted_by(source) or "")
    assert "0.9" in (predicted_by({**source, name: level}) or "")
