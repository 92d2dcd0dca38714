"""FindCoordinator (key 10): which broker coordinates a group (type 0), a transactional id (1)
or a share group (2).

v1 has the type of key; v3 is flexible; v4 asks for many keys at once, in fields of their own; v5
may answer TRANSACTION_ABORTABLE; v6 knows share groups.
"""

from __future__ import annotations

from tidemill.wire.declare import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
    strings,
)


class FindCoordinatorRequest(Message, versions="0-6", flexible="3+"):
    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = strings("4+")


class Coordinator(Struct):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class FindCoordinatorResponse(Message, versions="0-6", flexible="3+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
