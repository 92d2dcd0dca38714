"""Every message in every version, both ways, against kio."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.wire.kio_bridge import kio_decode, kio_encode, to_kio
from tests.wire.message_strategies import kafkas_messages, messages

from tidemill.wire.codec import decode_from, encode, encode_parts
from tidemill.wire.declare import Message
from tidemill.wire.messages.cluster import DescribeClusterResponse

EVERY_MESSAGE = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls, version in kafkas_messages()
]


def check_against_kio(cls: type[Message], version: int, data: st.DataObject) -> None:
    message = data.draw(messages(cls, version))
    entity = to_kio(message, version)
    ours = encode(message, version)
    assert kio_decode(cls, version, ours) == (entity, len(ours))
    assert decode_from(cls, version, kio_encode(entity)) == (message, len(kio_encode(entity)))
    assert b"".join(encode_parts(message, version)) == ours


def quick(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize(("cls", "version"), EVERY_MESSAGE)
def test_a_message_reads_the_same_here_and_in_kio(cls: type[Message], version: int) -> None:
    @quick(4)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_against_kio(cls, version, data)

    check()


@pytest.mark.soak
@pytest.mark.parametrize(("cls", "version"), EVERY_MESSAGE)
def test_many_messages_read_the_same_here_and_in_kio(cls: type[Message], version: int) -> None:
    @quick(150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_against_kio(cls, version, data)

    check()


@pytest.mark.parametrize("version", range(3))
def test_a_tag_of_our_own_is_the_last_thing_in_a_message(version: int) -> None:
    """Without a value it is not there, with one it only adds a tag, which Kafka's clients skip."""
    plain, told = (
        DescribeClusterResponse(cluster_id="c", unclean_elections=count) for count in (0, 3)
    )
    short, long = encode(plain, version), encode(told, version)
    assert decode_from(DescribeClusterResponse, version, long) == (told, len(long))
    assert long[: len(short) - 1] == short[:-1]
    assert (short[-1], long[len(short) - 1]) == (0, 1), "how many tags there are"
