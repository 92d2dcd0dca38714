"""`kafka-broker-api-versions`: which APIs, in which versions, each broker offers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, out

if TYPE_CHECKING:
    from tidemill.client.admin_types import ApiVersionRange, BrokerApiVersions


# The APIs that Kafka 4.3's own clients speak: key -> (name, newest version they have).
CLIENT_APIS: dict[int, tuple[str, int]] = {
    0: ("Produce", 13),
    1: ("Fetch", 18),
    2: ("ListOffsets", 11),
    3: ("Metadata", 13),
    8: ("OffsetCommit", 10),
    9: ("OffsetFetch", 10),
    10: ("FindCoordinator", 6),
    11: ("JoinGroup", 9),
    12: ("Heartbeat", 4),
    13: ("LeaveGroup", 5),
    14: ("SyncGroup", 5),
    15: ("DescribeGroups", 6),
    16: ("ListGroups", 5),
    17: ("SaslHandshake", 1),
    18: ("ApiVersions", 4),
    19: ("CreateTopics", 7),
    20: ("DeleteTopics", 6),
    21: ("DeleteRecords", 2),
    22: ("InitProducerId", 5),
    23: ("OffsetForLeaderEpoch", 4),
    24: ("AddPartitionsToTxn", 5),
    25: ("AddOffsetsToTxn", 4),
    26: ("EndTxn", 5),
    27: ("WriteTxnMarkers", 2),
    28: ("TxnOffsetCommit", 5),
    29: ("DescribeAcls", 3),
    30: ("CreateAcls", 3),
    31: ("DeleteAcls", 3),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    34: ("AlterReplicaLogDirs", 2),
    35: ("DescribeLogDirs", 5),
    36: ("SaslAuthenticate", 2),
    37: ("CreatePartitions", 3),
    38: ("CreateDelegationToken", 3),
    39: ("RenewDelegationToken", 2),
    40: ("ExpireDelegationToken", 2),
    41: ("DescribeDelegationToken", 3),
    42: ("DeleteGroups", 2),
    43: ("ElectLeaders", 2),
    44: ("IncrementalAlterConfigs", 1),
    45: ("AlterPartitionReassignments", 1),
    46: ("ListPartitionReassignments", 0),
    47: ("OffsetDelete", 0),
    48: ("DescribeClientQuotas", 1),
    49: ("AlterClientQuotas", 1),
    50: ("DescribeUserScramCredentials", 0),
    51: ("AlterUserScramCredentials", 0),
    55: ("DescribeQuorum", 2),
    57: ("UpdateFeatures", 2),
    60: ("DescribeCluster", 2),
    61: ("DescribeProducers", 0),
    64: ("UnregisterBroker", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 2),
    68: ("ConsumerGroupHeartbeat", 1),
    69: ("ConsumerGroupDescribe", 1),
    71: ("GetTelemetrySubscriptions", 0),
    72: ("PushTelemetry", 0),
    74: ("ListConfigResources", 1),
    75: ("DescribeTopicPartitions", 0),
    76: ("ShareGroupHeartbeat", 1),
    77: ("ShareGroupDescribe", 1),
    78: ("ShareFetch", 2),
    79: ("ShareAcknowledge", 2),
    80: ("AddRaftVoter", 1),
    81: ("RemoveRaftVoter", 0),
    83: ("InitializeShareGroupState", 0),
    84: ("ReadShareGroupState", 0),
    85: ("WriteShareGroupState", 1),
    86: ("DeleteShareGroupState", 0),
    87: ("ReadShareGroupStateSummary", 1),
    88: ("StreamsGroupHeartbeat", 0),
    89: ("StreamsGroupDescribe", 0),
    90: ("DescribeShareGroupOffsets", 1),
    91: ("AlterShareGroupOffsets", 0),
    92: ("DeleteShareGroupOffsets", 0),
}


def parser() -> Options:
    p = Options("kafka-broker-api-versions", "Show the API versions that brokers support.")
    common.address_options(p)
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    target = common.target(options, 'Missing required argument "[bootstrap-server]"')
    async with common.for_client(target, "admin").admin() as admin:
        for broker in (await admin.describe_cluster()).brokers:
            out(describe(await admin.api_versions(broker.broker_id)))
    return 0


def describe(found: BrokerApiVersions) -> str:
    broker = found.broker
    rack = "null" if broker.rack is None else broker.rack
    heading = (
        f"{broker.host}:{broker.port} (id: {broker.broker_id} rack: {rack} "
        f"isFenced: {str(broker.is_fenced).lower()}) -> ("
    )
    offered = {api.api_key: api for api in found.apis}
    keys = sorted({*CLIENT_APIS, *offered})
    lines = ",\n".join(f"\t{_api(key, offered.get(key))}" for key in keys)
    return f"{heading}\n{lines}\n)"


def _api(key: int, api: ApiVersionRange | None) -> str:
    name, newest = CLIENT_APIS.get(key, ("UNKNOWN", -1))
    if api is None:
        return f"{name}({key}): UNSUPPORTED"
    span = str(api.min_version)
    if api.max_version != api.min_version:
        span = f"{api.min_version} to {api.max_version}"
    if newest < api.min_version:
        return f"{name}({key}): {span} [unusable: node too new]"
    return f"{name}({key}): {span} [usable: {min(newest, api.max_version)}]"
