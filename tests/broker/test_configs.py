"""DescribeConfigs: a small request does not make the broker write a book."""

from __future__ import annotations

from tests.broker.harness import Client

from tidemill.broker.handlers.configs import _ENTRIES_SPARE
from tidemill.controller.settings import ResourceType
from tidemill.errors import ErrorCode
from tidemill.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource


async def test_naming_a_resource_again_and_again_does_not_multiply_the_answer(
    client: Client,
) -> None:
    """As in Kafka what is named twice is answered twice, but not for ever."""
    everything = DescribeConfigsResource(resource_type=ResourceType.BROKER, resource_name="0")
    response = await client.ask(DescribeConfigsRequest(resources=[everything] * 1_000), 4)
    sizes = [len(each.configs) for each in response.results]
    assert len(sizes) == 1_000
    assert sizes[0] == sizes[1] > 0
    assert sum(sizes) < _ENTRIES_SPARE + 1_000
    assert response.results[-1].error_code == ErrorCode.INVALID_REQUEST
