"""Change settings of a topic or a broker: what `topic alter` and `config set` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.render import Note
from tidemill.errors import ErrorCode

if TYPE_CHECKING:
    from tidemill.cli.connect import Target
    from tidemill.client.admin_types import ConfigResource


async def change(
    target: Target,
    resource: ConfigResource,
    shown: tuple[str, str],
    changes: Mapping[str, str],
    delete: Sequence[str],
    *,
    dry_run: bool,
) -> Note:
    """Set and unset, all or nothing; `shown` is what kind of thing that is, and its name."""
    from tidemill.client.admin_types import AlterOp, ResourceType

    kind, label = shown
    ops = [AlterOp.set(k, v) for k, v in changes.items()] + [AlterOp.delete(k) for k in delete]
    is_topic = resource.type is ResourceType.TOPIC
    async with target.admin() as admin:
        with suggesting([*changes, *delete], is_topic=is_topic):
            (await admin.alter_configs({resource: ops}, validate_only=dry_run)).raise_first()
    words = [f"{k}={v}" for k, v in changes.items()] + [f"{k} back to default" for k in delete]
    verb = "would change" if dry_run else "changed"
    return Note(
        f"{verb} {label}: {', '.join(words)}",
        {kind: label, "set": changes, "deleted": list(delete)},
        dry_run,
    )


@contextmanager
def suggesting(keys: Sequence[str], *, is_topic: bool) -> Iterator[None]:
    """Say which key was meant when the broker does not know one of these.

    Only then: another Kafka may have keys that we have never heard of.
    """
    from tidemill.client.errors import ClientError

    try:
        yield
    except ClientError as error:
        if error.code not in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            raise
        hint = _meant(keys, is_topic=is_topic)
        if hint is None:
            raise
        message = error.message or error.code.name
        said_so = "Did you mean" in message  # Our own brokers do, where Kafka's words allow it.
        raise CommandError(message, Exit.USAGE, None if said_so else hint) from error


def _meant(keys: Sequence[str], *, is_topic: bool) -> str | None:
    from tidemill.config import BROKER_KEYS, TOPIC_KEYS
    from tidemill.config.suggest import nearest

    known = TOPIC_KEYS if is_topic else BROKER_KEYS
    for key in keys:
        found = None if key in known else nearest(key, known)
        if found is not None:
            return f"did you mean {found}? `tidemill config explain {found}` says what it does"
    return None
