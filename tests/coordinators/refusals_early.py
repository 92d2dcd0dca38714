"""Refusals of a broker that nobody has asked for a coordinator yet."""

from __future__ import annotations

from collections.abc import Callable

from tests.coordinators.scene import (
    BEFORE_THE_TOPIC,
    Play,
    Scene,
    refused,
)

from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey

# Before there is a coordinator.


def _before(api: ApiKey) -> Callable[[Play], Play]:
    return refused(api, ErrorCode.NOT_COORDINATOR, BEFORE_THE_TOPIC)


@_before(ApiKey.JOIN_GROUP)
def early_join(scene: Scene) -> int:
    return int(scene.joins().error_code)


@_before(ApiKey.SYNC_GROUP)
def early_sync(scene: Scene) -> int:
    return scene.syncs("m", 1)


@_before(ApiKey.HEARTBEAT)
def early_beat(scene: Scene) -> int:
    return scene.beats("m", 1)


@_before(ApiKey.LEAVE_GROUP)
def early_leave(scene: Scene) -> int:
    return scene.leaves("m")


@_before(ApiKey.OFFSET_COMMIT)
def early_commit(scene: Scene) -> int:
    return scene.commits()


@_before(ApiKey.OFFSET_FETCH)
def early_fetch(scene: Scene) -> int:
    return scene.fetches()


@_before(ApiKey.OFFSET_DELETE)
def early_offset_delete(scene: Scene) -> int:
    return scene.deletes_offset()


@_before(ApiKey.DESCRIBE_GROUPS)
def early_describe(scene: Scene) -> int:
    return scene.describes()


@_before(ApiKey.DELETE_GROUPS)
def early_delete(scene: Scene) -> int:
    return scene.deletes()


@_before(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def early_newer_join(scene: Scene) -> int:
    return int(scene.joins_newer().error_code)


@_before(ApiKey.CONSUMER_GROUP_DESCRIBE)
def early_newer_describe(scene: Scene) -> int:
    return scene.describes_newer()


@refused(ApiKey.CONSUMER_GROUP_HEARTBEAT, ErrorCode.INVALID_REQUEST, BEFORE_THE_TOPIC)
def early_and_wrong(scene: Scene) -> int:
    """What no group could answer is refused before the coordinator is looked for."""
    return int(scene.heartbeat(-3).error_code)
