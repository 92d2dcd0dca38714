"""DescribeConfigs: a small request does not make the broker write a book."""

from __future__ import annotations

from tests.broker.harness import Client

from tidemill.broker.handlers.configs import REPEATED_ENTRIES_MAX
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
    assert sum(sizes) < REPEATED_ENTRIES_MAX + 1_000
    assert response.results[-1].error_code == ErrorCode.INVALID_REQUEST


async def test_any_broker_describes_thousands_of_groups_at_once(client: Client) -> None:
    """It does not know of those that others coordinate: each may be there."""
    groups = [
        DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name=f"group-{number}")
        for number in range(5_000)
    ]
    response = await client.ask(DescribeConfigsRequest(resources=groups), 4)
    assert {each.error_code for each in response.results} == {0}
    again = await client.ask(DescribeConfigsRequest(resources=groups * 2), 4)
    assert [each.error_code for each in again.results[:5_000]] == [0] * 5_000
    assert again.results[-1].error_code == ErrorCode.INVALID_REQUEST


async def test_a_broker_by_many_spellings_of_its_id_is_one(client: Client) -> None:
    resources = [
        DescribeConfigsResource(resource_type=ResourceType.BROKER, resource_name="0" * length)
        for length in range(1, 1_000)
    ]
    response = await client.ask(DescribeConfigsRequest(resources=resources), 4)
    assert sum(len(each.configs) for each in response.results) < REPEATED_ENTRIES_MAX + 1_000
    assert response.results[-1].error_code == ErrorCode.INVALID_REQUEST
