"""What tests of the columnar codec share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.wire import columns, kernels


@pytest.fixture(params=["plain", "numba"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with the kernels as plain Python and as compiled code."""
    before = [each.compiled for each in kernels._KERNELS]
    if request.param == "numba":
        pytest.importorskip("numba")
        columns.use_numba()
    else:
        for each in kernels._KERNELS:
            each.compiled = None
    yield str(request.param)
    for each, compiled in zip(kernels._KERNELS, before, strict=True):
        each.compiled = compiled
