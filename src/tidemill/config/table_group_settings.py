"""The settings of one group: what an operator may set for it alone, over what its broker says.

Kafka has further ones for share and streams groups. They are described as Kafka describes them, and
refused when set: there are no such groups here that they could change.
"""

from __future__ import annotations

from tidemill.config.constraints import at_least
from tidemill.config.keys import ConfigType, Section, Status, Update

_groups = Section("Groups")

GROUP = (
    _groups(
        "consumer.assignment.interval.ms",
        ConfigType.INT,
        "1000",
        ("The shortest time between two new assignments of the group."),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _groups(
        "consumer.heartbeat.interval.ms",
        ConfigType.INT,
        "5000",
        ("How often members of the group report."),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
    ),
    _groups(
        "consumer.session.timeout.ms",
        ConfigType.INT,
        "45000",
        ("A member that has not reported for this long is dropped."),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
    ),
)

_others = Section("Share and streams groups")

_UNSUPPORTED = (
    ("share.assignment.interval.ms", ConfigType.INT, "1000", "ms"),
    ("share.auto.offset.reset", ConfigType.STRING, "latest", ""),
    ("share.delivery.count.limit", ConfigType.INT, "5", "attempts"),
    ("share.heartbeat.interval.ms", ConfigType.INT, "5000", "ms"),
    ("share.isolation.level", ConfigType.STRING, "read_uncommitted", ""),
    ("share.partition.max.record.locks", ConfigType.INT, "2000", "records"),
    ("share.record.lock.duration.ms", ConfigType.INT, "30000", "ms"),
    ("share.renew.acknowledge.enable", ConfigType.BOOLEAN, "true", ""),
    ("share.session.timeout.ms", ConfigType.INT, "45000", "ms"),
    ("streams.assignment.interval.ms", ConfigType.INT, "1000", "ms"),
    ("streams.heartbeat.interval.ms", ConfigType.INT, "5000", "ms"),
    ("streams.initial.rebalance.delay.ms", ConfigType.INT, "3000", "ms"),
    ("streams.num.standby.replicas", ConfigType.INT, "0", "replicas"),
    ("streams.session.timeout.ms", ConfigType.INT, "45000", "ms"),
)

SHARE_AND_STREAMS = tuple(
    _others(
        name,
        kind,
        default,
        "For groups that Tidemill does not offer.",
        unit=unit,
        update=Update.CLUSTER_WIDE,
        status=Status.UNSUPPORTED,
    )
    for name, kind, default, unit in _UNSUPPORTED
)
