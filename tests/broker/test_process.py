"""The process around a broker, where the system does not do as it is told."""

from __future__ import annotations

import resource

import pytest

from tidemill.broker.process import half_of_file_limit, raise_file_limit


@pytest.mark.parametrize("error", [ValueError("current limit exceeds maximum"), OSError("no")])
def test_a_file_limit_that_cannot_be_raised_stays(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_file_limit()


@pytest.mark.parametrize(("limit", "half"), [(resource.RLIM_INFINITY, 2**19), (1024, 512), (8, 16)])
def test_half_of_the_file_limit(monkeypatch: pytest.MonkeyPatch, limit: int, half: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert half_of_file_limit() == half
