"""`Admin`: topics, partitions, offsets, configurations and brokers, one method per question.

A call about many things returns `Results`: per thing its result or its own error. What concerns the
call as a whole - no broker reachable, no answer in time - is raised.

How requests are built and answers read is in `admin_topics`, `admin_configs` and their like; who is
asked is decided here: the controller for changes of topics and moves of replicas, a broker for its
own settings and directories, partition leaders for offsets, anybody for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from tidemill.client import (
    admin_brokers,
    admin_configs,
    admin_groups,
    admin_reassignments,
    admin_topics,
)
from tidemill.client.admin_groups import GroupDescription, GroupListing
from tidemill.client.admin_types import (
    AlterOp,
    BrokerApiVersions,
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    ElectionType,
    ListedOffset,
    LogDirDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ProducerDescription,
    Reassignment,
    Replica,
    ResourceType,
    Results,
    TopicDescription,
    TopicListing,
)
from tidemill.client.by_leader import ask_leaders
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connection, Connector, connect_tcp
from tidemill.client.errors import (
    ClientError,
    ClosedError,
    RequestTimeoutError,
    UnreachableError,
)
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.offsets import list_offsets
from tidemill.client.settings import AdminSettings, parse
from tidemill.clock import Clock
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.messages.cluster import DescribeClusterRequest
from tidemill.wire.messages.log_dirs import DescribeLogDirsRequest

V = TypeVar("V")
_SETUP_GRACE_MS = 5_000
"""What a broker gets on top of the time we give it for a change, so that its answer arrives."""


class Admin:
    """`async with Admin("127.0.0.1:9092") as admin: await admin.create_topics([NewTopic("t")])`.

    Args:
        bootstrap: brokers to ask first, "host:port,host:port" or a list of such.
        settings: see `AdminSettings`; `request_timeout_ms` and `"request.timeout.ms"` both work.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        connector: Connector = connect_tcp,
        **settings: object,
    ) -> None:
        self.settings = parse(AdminSettings, settings, bootstrap)
        self._cluster = Cluster(self.settings, clock=clock, random=random, connector=connector)
        self._started = False

    async def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        await self._cluster.start()
        self._started = True

    async def close(self) -> None:
        self._started = False
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- topics ----------------------------------------------------------------------------------

    async def list_topics(self, internal: bool = False) -> list[TopicListing]:
        """All topics by name; the cluster's own ones only with `internal`."""
        answer = await self._running().fetch_metadata(None)
        found = admin_topics.listings(answer)
        return [listing for listing in found if internal or not listing.is_internal]

    async def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> Results[str, TopicDescription]:
        """Partitions and replicas of the named topics, or of all; an unknown one has its error."""
        cluster = self._running()
        wanted = None if names is None else list(dict.fromkeys(names))
        if wanted == []:
            return Results()
        connection = await cluster.any_connection()
        if connection.version_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS) is None:
            return admin_topics.from_metadata(await cluster.fetch_metadata(wanted), wanted)
        return await admin_topics.describe(cluster.call_any, wanted)

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        """Create topics; with `validate_only` just say whether and how it would be done."""
        timeout_ms = self._change_timeout_ms
        request = admin_topics.create_request(topics, timeout_ms, validate_only=validate_only)
        if not request.topics:
            return Results()
        answer = await self._change(request)
        return admin_topics.created(answer)

    async def delete_topics(self, names_or_ids: Iterable[str | UUID]) -> Results[str | UUID, None]:
        """Delete topics by name or by id."""
        wanted = list(dict.fromkeys(names_or_ids))
        if not wanted:
            return Results()
        connection = await self._running().controller()
        request = admin_topics.delete_request(
            wanted,
            self._change_timeout_ms,
            ids_known=(connection.version_of(ApiKey.DELETE_TOPICS) or 0) >= 6,
        )
        return admin_topics.deleted(await self._change(request), wanted)

    async def create_partitions(
        self, topics: Mapping[str, NewPartitions], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Grow topics to a new total; keys that were hashed over the old number will move."""
        if not topics:
            return Results()
        request = admin_topics.grow_request(
            topics, self._change_timeout_ms, validate_only=validate_only
        )
        return admin_topics.grown(await self._change(request))

    # --- offsets ---------------------------------------------------------------------------------

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> Results[TopicPartition, int]:
        """Delete what is before each offset (-1: everything); the result is the new log start."""

        async def ask(
            connection: Connection, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, int | ClientError]:
            part = {partition: offsets[partition] for partition in partitions}
            timeout_ms = self._change_timeout_ms
            request = admin_topics.delete_records_request(part, timeout_ms)
            answer = await connection.request(request, timeout_ms=timeout_ms + _SETUP_GRACE_MS)
            return admin_topics.records_deleted(answer)

        return await ask_leaders(self._running(), offsets, ask)

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
    ) -> Results[TopicPartition, ListedOffset]:
        """The earliest, latest, newest-by-time offset, or the first at or after a time."""
        return await list_offsets(self._running(), specs, isolation_level=isolation_level)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, list[ProducerDescription]]:
        """What each partition's leader remembers of its idempotent producers."""

        async def ask(
            connection: Connection, part: list[TopicPartition]
        ) -> dict[TopicPartition, list[ProducerDescription] | ClientError]:
            answer = await connection.request(admin_brokers.producers_request(part))
            return admin_brokers.producers(answer)

        return await ask_leaders(self._running(), partitions, ask)

    # --- configurations --------------------------------------------------------------------------

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """Every key of each resource with its value and where that comes from."""
        results: Results[ConfigResource, dict[str, ConfigEntry]] = Results()

        async def ask(broker_id: int | None, part: list[ConfigResource]) -> None:
            request = admin_configs.describe_request(
                part, synonyms=include_synonyms, documentation=include_documentation
            )
            results.update(admin_configs.described(await self._ask(broker_id, request)))

        wanted = list(dict.fromkeys(resources))
        await self._per_broker(wanted, ask, results)
        return Results({resource: results[resource] for resource in wanted if resource in results})

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[AlterOp]],
        *,
        validate_only: bool = False,
    ) -> Results[ConfigResource, None]:
        """Change single keys; all other keys keep their values."""
        results: Results[ConfigResource, None] = Results()

        async def ask(broker_id: int | None, part: list[ConfigResource]) -> None:
            request = admin_configs.alter_request(
                {resource: changes[resource] for resource in part}, validate_only=validate_only
            )
            if broker_id is None:
                answer = await self._change(request)
            else:
                answer = await self._ask(broker_id, request)
            results.update(admin_configs.altered(answer))

        await self._per_broker(list(changes), ask, results)
        return results

    async def list_config_resources(
        self, types: Iterable[ResourceType] = ()
    ) -> list[ConfigResource]:
        """The resources that have settings of their own; all types unless some are named."""
        request = admin_configs.list_request(types)
        return admin_configs.listed(await self._running().call_any(request))

    # --- groups ----------------------------------------------------------------------------------

    async def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[GroupListing]:
        """All groups by name, or only those in these states or of these types."""
        return await admin_groups.list_groups(self._running(), states, types)

    async def describe_groups(self, group_ids: Iterable[str]) -> Results[str, GroupDescription]:
        """Members, assignments and state of each group."""
        return await admin_groups.describe_groups(self._running(), group_ids)

    async def delete_groups(self, group_ids: Iterable[str]) -> Results[str, None]:
        """Delete groups without members, and their offsets."""
        return await admin_groups.delete_groups(self._running(), group_ids)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, of these partitions or of all."""
        return await admin_groups.list_offsets(self._running(), group_id, partitions)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> Results[TopicPartition, None]:
        """Move a group that has no members to other offsets."""
        return await admin_groups.alter_offsets(self._running(), group_id, offsets)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Forget offsets of topics that no member of the group reads."""
        return await admin_groups.delete_offsets(self._running(), group_id, partitions)

    # --- replicas and leaders --------------------------------------------------------------------

    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> Results[TopicPartition, None]:
        """Start to move partitions to these brokers, the preferred leader first; None cancels."""
        if not targets:
            return Results()
        request = admin_reassignments.alter_request(
            targets,
            self._change_timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
        )
        return admin_reassignments.altered(await self._change(request))

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way, of these partitions or of all."""
        request = admin_reassignments.list_request(partitions, self._change_timeout_ms)
        return admin_reassignments.listed(await self._change(request))

    async def elect_leaders(
        self, election: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, None]:
        """Elect leaders of these partitions, or of all that need it."""
        wanted = None if partitions is None else list(partitions)
        if wanted == []:
            return Results()
        request = admin_reassignments.elect_request(election, wanted, self._change_timeout_ms)
        return admin_reassignments.elected(await self._change(request))

    async def alter_replica_log_dirs(self, moves: Mapping[Replica, str]) -> Results[Replica, None]:
        """Move replicas to other directories of their brokers."""
        by_broker: dict[int, dict[TopicPartition, str]] = {}
        for replica, path in moves.items():
            of_broker = by_broker.setdefault(replica.broker_id, {})
            of_broker[TopicPartition(replica.topic, replica.partition)] = path
        asked = [self._alter_log_dirs(broker, part) for broker, part in by_broker.items()]
        results: Results[Replica, None] = Results()
        for part in await asyncio.gather(*asked):
            results.update(part)
        return results

    async def _alter_log_dirs(
        self, broker_id: int, moves: Mapping[TopicPartition, str]
    ) -> dict[Replica, ClientError | None]:
        try:
            answer = await self._ask(broker_id, admin_reassignments.log_dirs_request(moves))
        except ClientError as error:
            return {Replica(*partition, broker_id): error for partition in moves}
        return admin_reassignments.log_dirs_altered(answer, broker_id)

    # --- brokers ---------------------------------------------------------------------------------

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        cluster = self._running()
        connection = await cluster.any_connection()
        version = connection.version_of(ApiKey.DESCRIBE_CLUSTER)
        if version is None:
            await cluster.fetch_metadata([])
            return admin_brokers.from_view(cluster.view)
        request = DescribeClusterRequest(include_fenced_brokers=include_fenced and version >= 2)
        return admin_brokers.cluster(await cluster.call_any(request))

    async def describe_log_dirs(
        self,
        broker_ids: Iterable[int] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> Results[int, dict[str, LogDirDescription]]:
        """The log directories of the named brokers, or of all, and which partitions are in them.

        With `partitions` only these are looked at, which is cheap where there are thousands.
        """
        cluster = self._running()
        if broker_ids is None:
            await cluster.fetch_metadata([])
        ids = list(cluster.view.nodes if broker_ids is None else dict.fromkeys(broker_ids))
        request = admin_brokers.log_dirs_request(partitions)
        asked = [self._log_dirs(broker_id, request) for broker_id in ids]
        return Results(zip(ids, await asyncio.gather(*asked), strict=True))

    async def _log_dirs(
        self, broker_id: int, request: DescribeLogDirsRequest
    ) -> dict[str, LogDirDescription] | ClientError:
        try:
            answer = await self._ask(broker_id, request)
            return admin_brokers.log_dirs(answer)
        except ClientError as error:
            return error

    async def api_versions(self, broker_id: int | None = None) -> BrokerApiVersions:
        """What one broker offers, and which version of each request we would use."""
        cluster = self._running()
        if broker_id is None:
            connection = await cluster.any_connection()
        else:
            connection = await cluster.connection(broker_id)
        at = connection.address
        known = [node for node in cluster.view.nodes.values() if node.address == at]
        node_id, rack = (known[0].node_id, known[0].rack) if known else (-1, None)
        broker = BrokerDescription(node_id, at.host, at.port, rack)
        return admin_brokers.versions(broker, connection)

    # --- who is asked ----------------------------------------------------------------------------

    @property
    def _change_timeout_ms(self) -> int:
        return self.settings.request_timeout_ms

    def _running(self) -> Cluster:
        if not self._started:
            raise ClosedError("this admin client is not running; use it inside `async with`")
        return self._cluster

    async def _ask(self, broker_id: int | None, request: Message) -> Any:
        """Ask one broker, or anyone; a question may be asked twice."""
        cluster = self._running()
        if broker_id is None:
            return await cluster.call_any(request)
        connection = await cluster.connection(broker_id)
        return await connection.request(request)

    async def _change(self, request: Message) -> Any:
        """Ask the controller for a change, again if it moved; a change is never sent blindly twice.

        If the connection breaks after the request was sent, nobody knows whether it was done, so
        that is the caller's to decide.
        """
        cluster = self._running()
        timeout_ms = self._change_timeout_ms + _SETUP_GRACE_MS
        deadline_ms = cluster.clock.monotonic_ms() + self.settings.default_api_timeout_ms
        failures = 0
        while True:
            connection = await cluster.controller()
            try:
                answer = await connection.request(request, timeout_ms=timeout_ms)
            except (UnreachableError, RequestTimeoutError) as error:
                raise type(error)(
                    f"{error.message}; whether the change was made is not known"
                ) from error
            failures += 1
            delay_ms = cluster.retry_backoff.delay_ms(failures)
            late = cluster.clock.monotonic_ms() + delay_ms >= deadline_ms
            if late or not _is_not_controller(answer):
                return answer
            await asyncio.sleep(delay_ms / 1000)
            await cluster.fetch_metadata([])

    async def _per_broker(
        self,
        resources: list[ConfigResource],
        ask: admin_configs.AskBroker,
        results: Results[ConfigResource, V],
    ) -> None:
        """Ask each named broker about itself, anyone about the rest; failures become results."""
        for broker_id, part in admin_configs.by_broker(resources).items():
            try:
                await ask(broker_id, part)
            except ClientError as error:
                if broker_id is None:
                    raise
                results.update(dict.fromkeys(part, error))


def _is_not_controller(answer: object) -> bool:
    return admin_topics.is_not_controller(answer) or admin_reassignments.is_not_controller(answer)
