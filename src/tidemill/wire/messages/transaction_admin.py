"""DescribeTransactions (key 65) and ListTransactions (66): open transactions, from outside.

ListTransactions: v1 filters by duration, v2 by a pattern on the transactional id.
"""

from __future__ import annotations

from tidemill.wire.declare import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int32s,
    int64,
    int64s,
    string,
    strings,
)


class DescribeTransactionsRequest(Message, versions="0", flexible="0+"):
    transactional_ids: list[str] = strings()


class TopicData(Struct):
    topic: str = string()
    partitions: list[int] = int32s()


class TransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)


class ListTransactionsRequest(Message, versions="0-2", flexible="0+"):
    state_filters: list[str] = strings()
    producer_id_filters: list[int] = int64s()
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListedTransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = strings()
    transaction_states: list[ListedTransactionState] = array(ListedTransactionState)
