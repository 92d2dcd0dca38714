"""What a kernel is; what the kernels do is tested through their users, in `test_columns`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemill.wire import kernels


def test_importing_the_wire_needs_neither_numba_nor_numpy_nor_arrow() -> None:
    code = (
        "import sys, tidemill.wire.columns, tidemill.wire.legacy, tidemill.wire.control\n"
        "sys.exit(bool({'numba', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_kernel_is_a_plain_function() -> None:
    with pytest.raises(TypeError):
        kernels.kernel(len)


def test_every_kernel_calls_kernels_of_its_own_file_only() -> None:
    """Numba's cache would not notice a change in another file."""
    for each in kernels._KERNELS:
        names = each.function.__globals__
        called = [value for name, value in names.items() if each._calls(name, value)]
        assert {other.function.__module__ for other in called} <= {each.function.__module__}
