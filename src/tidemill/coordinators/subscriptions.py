"""What the members of a group want to read, resolved against the topics that there are.

`metadata_hash` is one number for all topics a group wants: when it changes, a topic was created,
deleted or grew, and partitions have to be assigned anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.coordinators.consumer_member import ConsumerMember
from tidemill.coordinators.regex import RegexError
from tidemill.coordinators.topic_search import TopicSearch
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.types import TopicId

_PRIME = (1 << 61) - 1
_SIZES_APART = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SIGN = 1 << 63

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
    found = resolved.get(member.topic_regex, frozenset())
    return member.topic_names | found if member.topic_names else found


def all_names(members: Iterable[ConsumerMember], resolved: Resolved) -> frozenset[str]:
    """Everything that anybody asks for; most groups are of one mind, and that set is not copied."""
    wishes = {topic_names(member, resolved) for member in members}
    return wishes.pop() if len(wishes) == 1 else frozenset().union(*wishes)


def topic_ids(names: Iterable[str], image: ClusterImage) -> frozenset[TopicId]:
    """The ids of those that exist."""
    found = (image.topics.get(name) for name in names)
    return frozenset(topic.topic_id for topic in found if topic is not None)


def patterns(members: Iterable[ConsumerMember]) -> frozenset[str]:
    """The regular expressions that somebody subscribes by."""
    return frozenset(m.topic_regex for m in members if m.topic_regex is not None)


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A signed 64-bit number for the named topics' ids and sizes; 0 when none of them exists.

    It is a sum, so that ten thousand names need not be brought into an order first. The ids are
    random, and squares keep one topic's growth from standing for another's.
    """
    topics = image.topics
    total = 0
    for name in names:
        topic = topics.get(name)
        if topic is not None:
            both = topic.topic_id.int + len(topic.partitions) * _SIZES_APART
            total += both * both % _PRIME + 1
    return (total & _MASK) - ((total & _SIGN) << 1)
