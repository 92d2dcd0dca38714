"""What the members of a group want to read, resolved against the topics that there are.

`metadata_hash` is one number for all topics a group wants: when it changes, a topic was created,
deleted or grew, and partitions have to be assigned anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from tidemill.coordinators.consumer_member import ConsumerMember
from tidemill.coordinators.regex import RegexError
from tidemill.coordinators.topic_search import TopicSearch
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.types import TopicId

Resolved = Mapping[str, frozenset[str]]
"""Per regular expression the topics that it describes."""


def resolve(pattern: str, image: ClusterImage, search: TopicSearch) -> frozenset[str] | None:
    """The names of all topics that the pattern describes in full; None: not all found yet."""
    try:
        return search.find(pattern, image.topics)
    except RegexError as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
        ) from error


def topic_names(member: ConsumerMember, resolved: Resolved) -> frozenset[str]:
    """Everything a member asks for, whether by name or by pattern."""
    if member.topic_regex is None:
        return member.topic_names
    return member.topic_names | resolved.get(member.topic_regex, frozenset())


def topic_ids(names: Iterable[str], image: ClusterImage) -> frozenset[TopicId]:
    """The ids of those that exist."""
    found = (image.topics.get(name) for name in names)
    return frozenset(topic.topic_id for topic in found if topic is not None)


def patterns(members: Iterable[ConsumerMember]) -> frozenset[str]:
    """The regular expressions that somebody subscribes by."""
    return frozenset(m.topic_regex for m in members if m.topic_regex is not None)


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A signed 64-bit number for the named topics' ids and sizes; 0 when none of them exists."""
    digest = hashlib.blake2b(digest_size=8)
    any_exists = False
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is not None:
            any_exists = True
            digest.update(topic.topic_id.bytes)
            digest.update(len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if any_exists else 0
