"""What the shards of a broker share."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tidemill.coordinators.surroundings import ShardSettings, Surroundings
from tidemill.image import EMPTY_IMAGE
from tidemill.testing.clock import ManualClock


def test_settings_of_groups_that_have_none_any_more_are_forgotten() -> None:
    """Groups with names of their own come and go for years."""
    around = Surroundings(ManualClock(), Random(1), ShardSettings(), lambda common, _: common)
    for number in range(100):
        name = f"group-{number}"
        configs = {name: {"consumer.session.timeout.ms": "9000"}, "always": {}}
        around.image = replace(EMPTY_IMAGE, group_configs=configs)
        around.consumer_settings("always")
        around.consumer_settings(name)
    assert set(around._own_settings) == {"always", "group-99"}
