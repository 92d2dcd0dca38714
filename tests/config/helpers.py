"""What the tests of the configuration share: settings by hand, and questions to a real Kafka."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping
from typing import Any

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.serial import entity_reader, entity_writer

from tidemill.config import BrokerConfig, DescribedConfig, Setting

TOPIC, BROKER = 2, 4

# The keys and values of the file that Kafka 4.3 ships for a first broker.
STOCK_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
#log.flush.interval.ms=1000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def broker_with(texts: Mapping[str, str]) -> BrokerConfig:
    """A broker with these static settings."""
    return BrokerConfig({name: Setting(text, "test") for name, text in texts.items()})


def ask(bootstrap: str, request: Any, response: type[Any]) -> Any:
    """One request to a broker, encoded by a foreign implementation of the protocol."""
    host, _, port = bootstrap.rpartition(":")
    body = io.BytesIO()
    body.write(struct.pack(">hhih", request.__api_key__, request.__version__, 1, -1) + b"\0")
    entity_writer(type(request))(body, request)
    frame = body.getvalue()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            payload = answer.read(size)
    decoded, _ = entity_reader(response)(payload, 5)  # correlation id, no tagged fields
    return decoded


def kafka_describes(bootstrap: str, resource_type: int, name: str) -> dict[str, dict[str, object]]:
    """Every key of a resource as Kafka describes it, in the shape of `as_facts`."""
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    (result,) = ask(bootstrap, request, DescribeConfigsResponse).results
    assert result.error_code == 0, result.error_message
    return {
        each.name: {
            "value": each.value,
            "source": int(each.config_source),
            "type": int(each.config_type),
            "read_only": each.read_only,
            "sensitive": each.is_sensitive,
            "synonyms": [(s.name, s.value, int(s.source)) for s in each.synonyms],
        }
        for each in result.configs
    }


def as_facts(described: DescribedConfig) -> dict[str, object]:
    return {
        "value": described.value,
        "source": int(described.source),
        "type": int(described.type),
        "read_only": described.read_only,
        "sensitive": described.sensitive,
        "synonyms": [(s.name, s.value, int(s.source)) for s in described.synonyms],
    }


def kafka_alters(
    bootstrap: str,
    resource_type: int,
    name: str,
    texts: Mapping[str, str],
    *,
    dry_run: bool,
    delete: bool = False,
) -> tuple[int, str | None]:
    """Set (or delete) keys of a resource; the error code and message that Kafka answers."""
    configs = tuple(
        AlterableConfig(name=key, config_operation=1 if delete else 0, value=text)
        for key, text in texts.items()
    )
    resource = AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry_run)
    (result,) = ask(bootstrap, request, IncrementalAlterConfigsResponse).responses
    return int(result.error_code), result.error_message
