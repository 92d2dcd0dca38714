"""Typed reading of settings: `config.int("num.partitions")` is one dictionary look-up."""

from __future__ import annotations

import builtins

from tidemill.config.keys import Value


class Getters:
    """Getters by type; asking for a key under another type than its own is a programming error."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[builtins.str, Value]) -> None:
        self._values = values

    def int(self, key: builtins.str) -> builtins.int:
        value = self._values[key]
        if type(value) is not int:
            raise TypeError(f"{key} is not a set whole number")
        return value

    def optional_int(self, key: builtins.str) -> builtins.int | None:
        value = self._values[key]
        return None if value is None else self.int(key)

    def bool(self, key: builtins.str) -> builtins.bool:
        value = self._values[key]
        if type(value) is not bool:
            raise TypeError(f"{key} is not a set boolean")
        return value

    def float(self, key: builtins.str) -> builtins.float:
        value = self._values[key]
        if type(value) is not float:
            raise TypeError(f"{key} is not a set number")
        return value

    def str(self, key: builtins.str) -> builtins.str:
        value = self._values[key]
        if type(value) is not str:
            raise TypeError(f"{key} is not a set text")
        return value

    def optional_str(self, key: builtins.str) -> builtins.str | None:
        value = self._values[key]
        return None if value is None else self.str(key)

    def list(self, key: builtins.str) -> builtins.list[builtins.str]:
        value = self._values[key]
        if value is None:
            return []
        if type(value) is not tuple:
            raise TypeError(f"{key} is not a list")
        return [*value]
