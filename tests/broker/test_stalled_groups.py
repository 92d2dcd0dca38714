"""Groups of a broker whose loop stood still: served again as soon as it leads again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.broker.harness import create_topic

from tidemill.client.consumer import Consumer
from tidemill.testing.in_process import InProcessCluster, until
from tidemill.types import TopicPartition

PLACE = TopicPartition("t", 0)


async def test_groups_are_served_again_after_a_stall_that_the_session_outlived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules A9 and J7: the image is the same as before, so nothing else says so."""
    async with InProcessCluster(tmp_path, 1) as cluster:
        server = cluster[1]
        await create_topic(server, "t")
        monkeypatch.setattr(server.stalls, "_session_timeout_ms", lambda: 1_000)
        bootstrap = f"127.0.0.1:{server.port}"
        async with Consumer(
            bootstrap, group_id="g", enable_auto_commit=False, default_api_timeout_ms=5_000
        ) as consumer:
            consumer.assign([PLACE])
            await consumer.commit({PLACE: 1})
            time.sleep(0.8)  # noqa: ASYNC251 - that is the point
            await until(lambda: server.stalls.count == 1)
            await consumer.commit({PLACE: 2})
            (found,) = (await consumer.committed(PLACE)).values()
            assert found is not None
            assert found.offset == 2
