"""The client: `Producer`, `Consumer` and `Admin` for asyncio; `tidemill.client.blocking` without.

They speak Kafka's protocol and work against Tidemill and Apache Kafka alike. May import `wire`,
`image`, `config` and what is below; `connection` is the only module that touches sockets.

Read `connection` (one socket), then `cluster` (who leads what, which connection to use), then what
you came for: `admin`, `producer` (with `accumulator` and `sender`), `consumer` (with `fetcher`,
and `member` for groups).
"""

from __future__ import annotations

from tidemill.client.admin import Admin
from tidemill.client.consumer import Consumer
from tidemill.client.consumer_types import ConsumerRecord, RawBatch
from tidemill.client.errors import ClientError, CommitFailedError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.member import RebalanceListener
from tidemill.client.producer import Producer
from tidemill.client.producer_types import RecordMetadata

__all__ = [
    "Admin",
    "ClientError",
    "CommitFailedError",
    "Consumer",
    "ConsumerRecord",
    "OffsetAndMetadata",
    "Producer",
    "RawBatch",
    "RebalanceListener",
    "RecordMetadata",
]
