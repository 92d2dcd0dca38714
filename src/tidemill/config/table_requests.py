"""Broker keys about requests, the making of topics, quotas and metrics."""

from __future__ import annotations

from tidemill.config.constraints import (
    any_list,
    at_least,
)
from tidemill.config.keys import ConfigType, Section, Status, Update

_requests = Section("Requests")

REQUESTS = (
    _requests(
        "queued.max.requests",
        ConfigType.INT,
        "500",
        (
            "How many requests may wait for a thread. In Tidemill none does: a request is handled "
            "as soon as it is read, and `queued.max.request.bytes` bounds what those in progress "
            "take."
        ),
        unit="requests",
        constraint=at_least(1),
        status=Status.ACCEPTED,
    ),
    _requests(
        "queued.max.request.bytes",
        ConfigType.LONG,
        "67108864",
        (
            "The memory that requests in progress may take together. When it is full the broker "
            "stops reading sockets until answers free some: clients wait, memory does not grow. "
            "-1 removes the bound."
        ),
        unit="bytes",
        kafka_default="-1",
    ),
    _requests(
        "request.timeout.ms",
        ConfigType.INT,
        "30000",
        ("How long this broker waits for another broker's answer before it gives up or retries."),
        unit="ms",
        status=Status.RESERVED,
    ),
    _requests(
        "num.network.threads",
        ConfigType.INT,
        "3",
        (
            "Threads that read and write sockets. Tidemill serves all connections from one event "
            "loop per broker process; run several brokers on a machine, each with its own port "
            "and data directory, to use more cores."
        ),
        unit="threads",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
    ),
    _requests(
        "num.io.threads",
        ConfigType.INT,
        "8",
        (
            "Threads that work on requests. Tidemill works on its event loop and sends only what "
            "blocks to a small pool; run more brokers per machine to use more cores."
        ),
        unit="threads",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
    ),
    _requests(
        "background.threads",
        ConfigType.INT,
        "10",
        ("Threads for housekeeping. Tidemill runs housekeeping as timers on its event loop."),
        unit="threads",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
    ),
    _requests(
        "fetch.max.bytes",
        ConfigType.INT,
        "57671680",
        (
            "The most data one fetch answer carries, whatever the client asks for. The first "
            "batch is always sent whole, so that a large batch cannot block a consumer."
        ),
        unit="bytes",
        constraint=at_least(1024),
    ),
    _requests(
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        "1000",
        (
            "How many fetch sessions the broker remembers. A consumer without one sends its whole "
            "partition list in every fetch: correct, but more work."
        ),
        unit="sessions",
        constraint=at_least(0),
    ),
    _requests(
        "max.request.partition.size.limit",
        ConfigType.INT,
        "2000",
        (
            "The most partitions one DescribeTopicPartitions answer lists; the client pages "
            "through the rest."
        ),
        unit="partitions",
        constraint=at_least(1),
    ),
    _requests(
        "fetch.purgatory.purge.interval.requests",
        ConfigType.INT,
        "1000",
        (
            "How often Kafka sweeps finished waiting fetches. Tidemill removes a waiting request "
            "the moment it finishes."
        ),
        unit="requests",
        status=Status.ACCEPTED,
    ),
    _requests(
        "producer.purgatory.purge.interval.requests",
        ConfigType.INT,
        "1000",
        (
            "How often Kafka sweeps finished waiting produce requests. Tidemill removes a waiting "
            "request the moment it finishes."
        ),
        unit="requests",
        status=Status.ACCEPTED,
    ),
    _requests(
        "delete.records.purgatory.purge.interval.requests",
        ConfigType.INT,
        "1",
        (
            "How often Kafka sweeps finished waiting delete-records requests. Tidemill removes a "
            "waiting request the moment it finishes."
        ),
        unit="requests",
        status=Status.ACCEPTED,
    ),
    _requests(
        "share.fetch.purgatory.purge.interval.requests",
        ConfigType.INT,
        "1000",
        (
            "How often Kafka sweeps finished waiting share fetches. Tidemill removes a waiting "
            "request the moment it finishes."
        ),
        unit="requests",
        status=Status.ACCEPTED,
    ),
)

_topics = Section("Topics")

TOPICS = (
    _topics(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "true",
        (
            "Whether asking for a topic that does not exist creates it, with `num.partitions` "
            "partitions and `default.replication.factor` replicas. Convenient while developing; "
            "in production a misspelt name becomes a topic, so turn it off."
        ),
    ),
    _topics(
        "delete.topic.enable",
        ConfigType.BOOLEAN,
        "true",
        ("Whether topics can be deleted. Off, a delete request is refused."),
    ),
    _topics(
        "num.partitions",
        ConfigType.INT,
        "1",
        (
            "The partitions of a topic that is created without saying how many. More can be added "
            "later, but keys then move between partitions."
        ),
        unit="partitions",
        constraint=at_least(1),
    ),
    _topics(
        "default.replication.factor",
        ConfigType.INT,
        "1",
        (
            "The replicas of a topic that is created without saying how many. Unless set it is "
            "the number of brokers, at most 3."
        ),
        unit="replicas",
    ),
    _topics(
        "create.topic.policy.class.name",
        ConfigType.CLASS,
        None,
        ("A Java class that may veto new topics. Tidemill loads no code that a setting names."),
        unit="class",
        status=Status.UNSUPPORTED,
    ),
    _topics(
        "alter.config.policy.class.name",
        ConfigType.CLASS,
        None,
        (
            "A Java class that may veto configuration changes. Tidemill loads no code that a "
            "setting names."
        ),
        unit="class",
        status=Status.UNSUPPORTED,
    ),
    _topics(
        "config.providers",
        ConfigType.LIST,
        "",
        (
            "Java classes that fetch settings from outside. Tidemill loads no code that a setting "
            "names and expands no `${...}`; use `TIDEMILL_*` variables for secrets."
        ),
        constraint=any_list(empty=True),
        update=Update.CLUSTER_WIDE,
        status=Status.UNSUPPORTED,
    ),
)

_quotas_and_metrics = Section("Quotas and metrics")

QUOTAS_AND_METRICS = (
    _quotas_and_metrics(
        "quota.window.num",
        ConfigType.INT,
        "11",
        ("How many samples of traffic are kept to measure clients against their quotas."),
        unit="samples",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "quota.window.size.seconds",
        ConfigType.INT,
        "1",
        ("How long one of those samples lasts."),
        unit="s",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "replication.quota.window.num",
        ConfigType.INT,
        "11",
        ("How many samples are kept to measure replication against its throttle."),
        unit="samples",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "replication.quota.window.size.seconds",
        ConfigType.INT,
        "1",
        ("How long one of those samples lasts."),
        unit="s",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "alter.log.dirs.replication.quota.window.num",
        ConfigType.INT,
        "11",
        (
            "How many samples are kept to measure moves between log directories against their "
            "throttle."
        ),
        unit="samples",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "alter.log.dirs.replication.quota.window.size.seconds",
        ConfigType.INT,
        "1",
        ("How long one of those samples lasts."),
        unit="s",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "controller.quota.window.num",
        ConfigType.INT,
        "11",
        (
            "How many samples are kept to measure how fast clients create and delete topics and "
            "partitions."
        ),
        unit="samples",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "controller.quota.window.size.seconds",
        ConfigType.INT,
        "1",
        ("How long one of those samples lasts."),
        unit="s",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "client.quota.callback.class",
        ConfigType.CLASS,
        None,
        ("A Java class that decides on quotas. Tidemill loads no code that a setting names."),
        unit="class",
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "metric.reporters",
        ConfigType.LIST,
        "org.apache.kafka.common.metrics.JmxReporter",
        (
            "Java classes that Kafka hands its metrics to. Tidemill loads no code that a setting "
            "names."
        ),
        constraint=any_list(empty=True),
        update=Update.CLUSTER_WIDE,
        status=Status.UNSUPPORTED,
        default_2_8="",
    ),
    _quotas_and_metrics(
        "metrics.num.samples",
        ConfigType.INT,
        "2",
        ("How many samples Kafka keeps to compute a metric."),
        unit="samples",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "metrics.sample.window.ms",
        ConfigType.LONG,
        "30000",
        ("How long Kafka collects one metric sample."),
        unit="ms",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "metrics.recording.level",
        ConfigType.STRING,
        "INFO",
        ("How detailed Kafka's metrics are: INFO, DEBUG or TRACE."),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "kafka.metrics.reporters",
        ConfigType.LIST,
        "",
        (
            "Java classes that Kafka hands its older metrics to. Tidemill loads no code that a "
            "setting names."
        ),
        constraint=any_list(empty=True),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "kafka.metrics.polling.interval.secs",
        ConfigType.INT,
        "10",
        ("How often Kafka's older metric reporters run."),
        unit="s",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
    _quotas_and_metrics(
        "telemetry.max.bytes",
        ConfigType.INT,
        "1048576",
        ("The largest telemetry push that is accepted from a client."),
        unit="bytes",
        constraint=at_least(1),
        status=Status.UNSUPPORTED,
    ),
)
