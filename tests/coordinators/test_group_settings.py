"""Settings of one group on a live broker: they hold for its members from the next heartbeat on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.broker.harness import Client, connect, create_topic, running_broker
from tests.waiting import LONG_S

from tidemill.errors import ErrorCode
from tidemill.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest

GROUP = 32
LOW_BOUNDS = {
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "offsets.topic.num.partitions": "1",
}


async def alter(client: Client, group: str, **values: int) -> int:
    configs = [
        IncrementalAlterableConfig(name=f"consumer.{name.replace('_', '.')}", value=str(value))
        for name, value in values.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP, resource_name=group, configs=configs
    )
    answer = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return int(answer.responses[0].error_code)


async def join(client: Client, group: str) -> Any:
    return await client.ask(
        ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="m", rebalance_timeout_ms=1_000, topic_partitions=[],
            subscribed_topic_names=["t"],
        ),
        1,
    )  # fmt: skip


async def beat(client: Client, group: str, epoch: int) -> Any:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=epoch)
    return await client.ask(request, 1)


async def members(client: Client, group: str) -> int:
    answer = await client.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    return len(answer.groups[0].members)


async def test_a_group_s_own_timeouts(tmp_path: Path) -> None:
    """A live group hears of them with its next heartbeat; a restart does not forget them."""
    async with running_broker(tmp_path, LOW_BOUNDS) as server, connect(server.port) as client:
        await create_topic(server, "t", 1)
        await client.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4)
        epochs = {group: (await join(client, group)).member_epoch for group in ("g", "other")}
        assert await alter(client, "g", session_timeout_ms=400, heartbeat_interval_ms=60) == 0
        intervals = {
            group: (await beat(client, group, epoch)).heartbeat_interval_ms
            for group, epoch in epochs.items()
        }
        assert intervals == {"g": 60, "other": 5_000}
        async with asyncio.timeout(LONG_S):
            while await members(client, "g"):  # noqa: ASYNC110 - nobody rings a bell
                await asyncio.sleep(0.05)
        assert await members(client, "other") == 1
        wrong = await alter(client, "g", session_timeout_ms=60)
        assert wrong == ErrorCode.INVALID_CONFIG
    async with running_broker(tmp_path, LOW_BOUNDS) as server, connect(server.port) as client:
        resource = DescribeConfigsResource(
            resource_type=GROUP,
            resource_name="g",
            configuration_keys=["consumer.session.timeout.ms"],
        )
        answer = await client.ask(DescribeConfigsRequest(resources=[resource]), 4)
        assert answer.results[0].configs[0].value == "400"
