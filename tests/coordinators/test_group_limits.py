"""What one group or one client may not do to others: names that are long, alike, or many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import connect, running_broker
from tests.coordinators.shard_world import ShardWorld

from tidemill.broker import connection
from tidemill.errors import ErrorCode, WireError
from tidemill.wire import frame
from tidemill.wire.codec import encode
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)

STRING_BYTES_MAX = 32_767
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def join_request(
    member_id: str = "", *, instance_id: str | None = None, protocols: tuple[str, ...] = ("range",)
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=b"") for name in protocols],
    )


def join(world: ShardWorld, client: str = "client", **fields: Any) -> JoinGroupResponse:
    request, info = join_request(**fields), world.info(client, 3)
    answers: list[JoinGroupResponse] = []
    world.run(lambda shard: shard.join(request, info, answers.append))
    world.wait(3_100)
    return answers[0]


@pytest.mark.parametrize("letter", ["x", "ü", "🙂"])
def test_every_member_s_id_can_be_told(letter: str) -> None:
    """An id that cannot be encoded would keep the leader, and so the group, from any answer."""
    longest = letter * (STRING_BYTES_MAX // len(letter.encode()))
    by_instance = join(ShardWorld(), instance_id=longest)
    by_client = join(ShardWorld(), client=longest)
    for answer in (by_instance, by_client):
        assert answer.error_code == 0
        assert answer.member_id.startswith(letter)
        assert encode(answer, 5)


def test_an_ordinary_id_is_whole() -> None:
    assert join(ShardWorld(), instance_id="i" * 249).member_id.startswith("i" * 249 + "-")


def test_protocols_that_nobody_has_any_more_are_forgotten() -> None:
    world = ShardWorld()
    member_id = join(world).member_id
    for number in range(20):
        others = tuple(f"junk-{number}-{each}" for each in range(20))
        join(world, member_id=member_id, protocols=("range", *others))
    group: Any = world.shard.groups["g"]
    assert len(group._support) == 21
    join(world, member_id=member_id)
    assert set(group._support) == {"range"}


def test_groups_whose_names_run_together_have_their_own_timers() -> None:
    """`a-b` with member `x` and `a` with member `b-x` are four different things."""
    world = ShardWorld()
    world.topic("t", 1)

    def beat(group: str, member: str, epoch: int, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, **fields
        )
        info = world.info(version=1)
        return world.run(lambda shard: shard.consumer_heartbeat(request, info))[0]

    wants: dict[str, Any] = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    beat("a-b", "x", 0, **wants)
    epoch = beat("a", "b-x", 0, **wants).member_epoch
    for _ in range(10):
        world.wait(5_000)
        beat("a", "b-x", epoch)
    silent: Any = world.shard.groups["a-b"]
    assert not silent.members


async def test_an_answer_that_cannot_be_encoded_is_the_trouble_of_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members of a group are answered in one go: the others must get theirs."""
    genuine = frame.encode_response

    def encode_response(api_key: int, version: int, correlation_id: int, message: Any) -> Any:
        if isinstance(message, JoinGroupResponse) and message.members:
            raise WireError("a string is too long")
        return genuine(api_key, version, correlation_id, message)

    monkeypatch.setattr(connection, "encode_response", encode_response)
    settings = {"group.initial.rebalance.delay.ms": "300", "offsets.topic.num.partitions": "1"}
    async with (
        running_broker(tmp_path, settings) as server,
        connect(server.port) as leader,
        connect(server.port) as other,
    ):
        await leader.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        for _ in range(500):
            if (await leader.ask(HeartbeatRequest(group_id="g"), 3)).error_code not in LOADING:
                break
            await asyncio.sleep(0.02)
        leader.send(join_request(), 3)
        await asyncio.sleep(0.1)
        answer = await other.ask(join_request(), 3)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await leader.receive(JoinGroupRequest, 3)
