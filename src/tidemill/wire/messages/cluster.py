"""DescribeCluster (key 60), and what brokers say to each other (keys from 30000 on).

DescribeCluster: the brokers, or the controllers, without any topics. v1 says which kind of endpoint
is meant (1 brokers, 2 controllers); v2 may include fenced brokers and marks them. The number of
unclean elections is told in a tag of our own.

The others are Tidemill's own. No client is told of them, and a broker serves them only to a peer
that has proved the cluster's secret, with ClusterHello on the same connection:

* ClusterHello goes twice. First each side shows a nonce, and the asked one its proof; then the
  asking one shows its own. A proof is an HMAC-SHA256 over both nonces and who speaks.
* ImageDelta: the controller tells what changed in the cluster's image since the version that the
  broker confirmed last, or all of it.
* Forward carries an admin request that came to another broker to the controller, as it was.
* ControlledShutdown: a broker is about to stop and gives up what it leads.
* OfflineReplicas: a broker cannot use these of its replicas; `trouble` is `image.ReplicaTrouble`.
"""

from __future__ import annotations

from uuid import UUID

from tidemill.wire.declare import (
    OWN_TAG_MIN,
    Message,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    int32s,
    int64,
    string,
    strings,
    uuid,
)


class DescribeClusterRequest(Message, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterBroker(Struct):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean("2+")


class DescribeClusterResponse(Message, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-(2**31))
    unclean_elections: int = int64(ignorable=True, tag=OWN_TAG_MIN)


class ClusterHelloRequest(Message, versions="0", flexible="0+"):
    """Without a proof it asks for the other side's nonce; with one it asks to be let in."""

    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    nonce: bytes = binary()
    proof: bytes = binary()


class ClusterHelloResponse(Message, versions="0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    broker_id: int = int32(default=-1)
    nonce: bytes = binary()
    proof: bytes = binary()


class Setting(Struct):
    name: str = string()
    value: str = string()


class ImageEndpoint(Struct):
    listener: str = string()
    host: str = string()
    port: int = int32()
    security_protocol: str = string()


class ImageBroker(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64()
    endpoints: list[ImageEndpoint] = array(ImageEndpoint)
    rack: str | None = string(nullable="0+", default=None)
    fenced: bool = boolean()
    in_controlled_shutdown: bool = boolean()


class ImagePartition(Struct):
    partition_index: int = int32()
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32()
    partition_epoch: int = int32()
    replicas: list[int] = int32s()
    isr: list[int] = int32s()
    elr: list[int] = int32s()
    last_known_elr: list[int] = int32s()
    adding_replicas: list[int] = int32s()
    removing_replicas: list[int] = int32s()
    leader_recovery_state: int = int8()
    controller_epoch: int = int32()


class ImageTopic(Struct):
    """A topic of which something changed; only changed partitions are listed.

    Settings are null where they did not change.
    """

    name: str = string()
    topic_id: UUID = uuid()
    partitions: list[ImagePartition] = array(ImagePartition)
    configs: list[Setting] | None = array(Setting, nullable="0+", default=None)


class ImageBrokerConfig(Struct):
    """All dynamic settings of one broker; -1 stands for those of all brokers together."""

    broker_id: int = int32(default=-1)
    configs: list[Setting] = array(Setting)


class ImageGroupConfig(Struct):
    group_id: str = string()
    configs: list[Setting] = array(Setting)


class ImageDeltaRequest(Message, versions="0", flexible="0+"):
    """A snapshot has everything, whatever the broker knew; a delta follows `from_version`."""

    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    controller_epoch: int = int32()
    from_version: int = int64(default=-1)
    version: int = int64()
    is_snapshot: bool = boolean()
    brokers: list[ImageBroker] = array(ImageBroker)
    removed_brokers: list[int] = int32s()
    topics: list[ImageTopic] = array(ImageTopic)
    removed_topics: list[str] = strings()
    broker_configs: list[ImageBrokerConfig] = array(ImageBrokerConfig)
    group_configs: list[ImageGroupConfig] = array(ImageGroupConfig)
    unclean_elections: int = int64()


class ImageDeltaResponse(Message, versions="0", flexible="0+"):
    """`version` is what the broker has now; an error asks for a snapshot, or for giving up."""

    error_code: int = int16()
    broker_epoch: int = int64(default=-1)
    version: int = int64(default=-1)


class ForwardRequest(Message, versions="0", flexible="0+"):
    """The body of a request without any header."""

    broker_id: int = int32()
    api_key: int = int16()
    api_version: int = int16()
    body: bytes = binary()


class ForwardResponse(Message, versions="0", flexible="0+"):
    """`image_version` is the image in which what was asked for shows."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    image_version: int = int64(default=-1)
    body: bytes = binary()


class ControlledShutdownRequest(Message, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class ControlledShutdownResponse(Message, versions="0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    image_version: int = int64(default=-1)


class OfflinePartitions(Struct):
    topic: str = string()
    partitions: list[int] = int32s()


class OfflineReplicasRequest(Message, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    trouble: int = int8()
    topics: list[OfflinePartitions] = array(OfflinePartitions)


class OfflineReplicasResponse(Message, versions="0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
