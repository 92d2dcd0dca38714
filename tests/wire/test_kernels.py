"""What a kernel is; what the kernels do is tested through their users, in `test_columns`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tidemill.spark.formats import avro_kernels
from tidemill.wire import encode_kernels, kernels


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
    assert {avro_kernels.__name__, encode_kernels.__name__} < {
        each.function.__module__ for each in kernels._KERNELS
    }
    for each in kernels._KERNELS:
        names = each.function.__globals__
        called = [value for name, value in names.items() if each._calls(name, value)]
        assert {other.function.__module__ for other in called} <= {each.function.__module__}


def test_all_files_with_kernels_are_looked_at() -> None:
    root = Path(tidemill.__file__).parent
    files = {path for path in root.rglob("*.py") if "\n@kernel\n" in path.read_text("utf-8")}
    assert files == {
        Path(str(module.__file__)) for module in (avro_kernels, encode_kernels, kernels)
    }
