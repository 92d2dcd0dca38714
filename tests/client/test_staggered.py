"""Several attempts one after the other: the first success counts, one that hangs costs a step."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import LONG_S

from tidemill.client.staggered import first_of


async def fails() -> str:
    raise ConnectionError("no")


async def works() -> str:
    return "yes"


async def test_the_next_one_follows_a_failure_at_once() -> None:
    async with asyncio.timeout(LONG_S):
        assert await first_of([fails, fails, works], ConnectionError, 60_000) == "yes"


async def test_what_is_not_needed_is_not_begun() -> None:
    begun: list[str] = []

    async def noted() -> str:
        begun.append("noted")
        return "late"

    assert await first_of([works, noted], ConnectionError, 60_000) == "yes"
    assert not begun


async def test_one_that_hangs_is_overtaken_and_cancelled() -> None:
    ended: list[str] = []

    async def hangs() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("hangs")
        return "never"

    async with asyncio.timeout(LONG_S):
        assert await first_of([hangs, works], ConnectionError, 1) == "yes"
    assert ended == ["hangs"]


async def test_all_failures_are_reported() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await first_of([fails, fails], ConnectionError, 1)
    assert len(caught.value.exceptions) == 2


async def test_what_was_not_expected_is_raised_as_it_is() -> None:
    async def breaks() -> str:
        raise KeyError("broken")

    with pytest.raises(KeyError):
        await first_of([breaks, works], ConnectionError, 60_000)


async def test_failures_are_reported_although_another_hangs() -> None:
    async def hangs() -> str:
        await asyncio.sleep(3600)
        return "never"

    async with asyncio.timeout(LONG_S):
        with pytest.raises(ExceptionGroup):
            await first_of([hangs, fails], ConnectionError, 1)


async def test_a_single_one_may_take_its_time() -> None:
    async def is_slow() -> str:
        await asyncio.sleep(0.05)
        return "yes"

    assert await first_of([is_slow], ConnectionError, 1) == "yes"
