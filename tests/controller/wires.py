"""Controllers that reach each other without sockets, as long as nobody cuts the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.controller.helpers import ENDPOINT, broker_config
from tests.store.helpers import until

from tidemill.clock import SystemClock
from tidemill.config import BrokerConfig
from tidemill.controller import Controller
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import PartitionImage, ReplicaTrouble
from tidemill.store.memory import MemoryStore, MemoryTree
from tidemill.types import TopicPartition
from tidemill.wire.codec import decode, encode
from tidemill.wire.declare import Message
from tidemill.wire.messages.cluster import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ImageDeltaRequest,
    ImageDeltaResponse,
    OfflineReplicasRequest,
    OfflineReplicasResponse,
)
from tidemill.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)


class Member:
    """One broker's controller, and what a test needs to ruin its day."""

    def __init__(self, controller: Controller, store: MemoryStore) -> None:
        self.controller = controller
        self.store = store
        self.lost_sessions = 0
        controller.on_session_lost(self._lost)

    def _lost(self) -> None:
        self.lost_sessions += 1


class Wires:
    """A cluster of controllers over one tree in memory."""

    def __init__(self, make_store: Callable[[MemoryTree], MemoryStore] = MemoryStore) -> None:
        self.tree = MemoryTree(SystemClock())
        self.make_store = make_store
        self.members: dict[int, Member] = {}
        self.cut: set[int] = set()
        self.sent: list[tuple[int, Message]] = []

    async def start(
        self,
        broker_id: int,
        *,
        config: BrokerConfig | None = None,
        directory_id: str | None = None,
        clean_shutdown_epoch: int = -1,
        flush_policy: str = "ack",
        rack: str | None = None,
        machine: str = "",
    ) -> Controller:
        """A broker that is let in when this returns."""
        store = self.make_store(self.tree)
        controller = Controller(
            store,
            config or broker_config(broker_session_timeout_ms="500"),
            SystemClock(),
            Random(broker_id),
            broker_id=broker_id,
        )
        await controller.start()
        controller.connect(_Wire(self, broker_id))
        self.members[broker_id] = Member(controller, store)
        await controller.register_broker(
            [ENDPOINT],
            rack=rack,
            directory_id=directory_id or f"directory-{broker_id}",
            clean_shutdown_epoch=clean_shutdown_epoch,
            flush_policy=flush_policy,
            machine=machine,
        )
        await controller.admitted(5_000)
        return controller

    async def start_all(self, *broker_ids: int) -> list[Controller]:
        return [await self.start(broker_id) for broker_id in broker_ids]

    def kill(self, broker_id: int) -> None:
        """The process is gone: nobody answers, and its session is over."""
        member = self.members.pop(broker_id)
        self.silence(member)
        self.tree.expire(member.store.session_id)

    def silence(self, member: Member) -> None:
        """The process does nothing any more, and its session is not over yet."""
        member.controller._presence.stop()
        member.controller._propagation.stop()
        self.tree.detach(member.store)

    async def expire(self, broker_id: int) -> None:
        """The session is over, and the process lives."""
        store = self.members[broker_id].store
        self.tree.expire(store.session_id)
        store.heartbeat()
        await asyncio.sleep(0)

    @property
    def boss(self) -> Controller:
        """Whoever is in office."""
        active = [m.controller for m in self.members.values() if m.controller.active]
        assert len(active) == 1, active
        return active[0]

    async def settled(self) -> None:
        """Somebody is in office, and everybody has the image of it."""

        def is_settled() -> bool:
            bosses = [m.controller for m in self.members.values() if m.controller.active]
            if len(bosses) != 1:
                return False
            image = bosses[0].image
            alive = {broker.broker_id for broker in image.alive_brokers()}
            reachable = set(self.members) - self.cut
            return alive - self.cut == reachable and all(
                self.members[each].controller.image.version == image.version for each in reachable
            )

        await until(is_settled)

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        found = self.boss.image.partition(topic, index)
        assert found is not None
        return found

    async def stop(self) -> None:
        for member in self.members.values():
            await member.controller.stop()
            await member.store.close()


class _Wire:
    """One broker's end; messages are encoded and decoded on the way."""

    def __init__(self, wires: Wires, broker_id: int) -> None:
        self._wires = wires
        self._broker_id = broker_id

    async def request(
        self,
        broker_id: int,
        message: Message,
        version: int | None = None,
        *,
        channel: str = "control",
        timeout_ms: int,
    ) -> Any:
        await asyncio.sleep(0)
        wires = self._wires
        if {broker_id, self._broker_id} & wires.cut or broker_id not in wires.members:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} cannot be reached")
        last = type(message).version_range().high
        arrived = decode(type(message), last, encode(message, last))
        wires.sent.append((broker_id, arrived))
        return await _answer(wires.members[broker_id].controller, arrived)


async def _answer(controller: Controller, message: Message) -> Message:
    match message:
        case ImageDeltaRequest():
            try:
                await controller.follow(message)
            except ApiError as error:
                return ImageDeltaResponse(error_code=error.code)
            return ImageDeltaResponse(version=controller.image.version)
        case AlterPartitionRequest():
            if not controller.active:
                return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
            return await controller.alter_partition(message)
        case ControlledShutdownRequest():
            try:
                image = await controller.shut_down_broker(message.broker_id, message.broker_epoch)
            except ApiError as error:
                return ControlledShutdownResponse(error_code=error.code)
            return ControlledShutdownResponse(image_version=image.version)
        case OfflineReplicasRequest():
            lost = [
                TopicPartition(t.topic, index) for t in message.topics for index in t.partitions
            ]
            await controller.replicas_of_broker_lost(
                message.broker_id, message.broker_epoch, lost, ReplicaTrouble(message.trouble)
            )
            return OfflineReplicasResponse()
        case other:
            raise AssertionError(other)


def proposal(
    controller: Controller,
    topic: str,
    isr: list[int],
    *,
    index: int = 0,
    epochs: Mapping[int, int] | None = None,
) -> AlterPartitionRequest:
    """What a leader that has the controller's image would send."""
    image = controller.image
    state = image.partition(topic, index)
    assert state is not None
    leader = image.brokers[state.leader]
    known: dict[int, int] = {key: broker.epoch for key, broker in image.brokers.items()}
    known.update(epochs or {})
    members = [BrokerState(broker_id=each, broker_epoch=known.get(each, -1)) for each in isr]
    data = PartitionData(
        partition_index=index,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr_with_epochs=members,
    )
    return AlterPartitionRequest(
        broker_id=leader.broker_id,
        broker_epoch=leader.epoch,
        topics=[TopicData(topic_id=image.topics[topic].topic_id, partitions=[data])],
    )


async def propose(controller: Controller, topic: str, isr: list[int]) -> ErrorCode:
    """Have the controller change an in-sync set; its verdict."""
    answer = await controller.alter_partition(proposal(controller, topic, isr))
    assert answer.error_code == 0
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def restart(wires: Wires, broker_id: int, **options: object) -> None:
    wires.kill(broker_id)
    await wires.settled()
    await wires.start(broker_id, **options)  # type: ignore[arg-type]
    await wires.settled()


async def set_topic(wires: Wires, name: str, key: str, value: str) -> None:
    await set_one(wires, 2, name, key, value)


async def set_default(wires: Wires, key: str, value: str) -> None:
    """For all brokers, from which topics inherit."""
    await set_one(wires, 4, "", key, value)


async def set_one(wires: Wires, kind: int, name: str, key: str, value: str) -> None:
    change = IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[IncrementalAlterableConfig(name=key, config_operation=0, value=value)],
    )
    [plan] = await wires.boss.incremental_alter_configs([change])
    assert plan.error is None
