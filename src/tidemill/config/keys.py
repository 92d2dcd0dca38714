"""What a configuration key is: its type, default, limits, meaning, and how it may be changed.

The tables (`table_*.py`, `topic_keys.py`) are lists of `ConfigKey`. Everything else is derived from
them: parsing, DescribeConfigs, `tidemill config explain`, and the reference page.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from tidemill.errors import ErrorCode, TidemillError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

# A parsed value. Lists are tuples so that nobody changes a shared one.
Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None


class ConfigError(TidemillError):
    """A key or value that cannot be used; the message says why and what to do."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> None:
        super().__init__(message)
        self.message = message
        self.code = code  # what a client that sent the key or value is answered


class ConfigType(IntEnum):
    """The types of values; the numbers are those of the DescribeConfigs answer."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(Enum):
    """Whether a broker key can change while the broker runs, and for whom."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Status(Enum):
    """What Tidemill does with a key."""

    SUPPORTED = "supported"
    RESERVED = "reserved"  # kept and reported; the part that reads it is not there yet
    ACCEPTED = "accepted"  # has no effect here; the doc says what replaces it
    KRAFT = "kraft"  # steers Kafka's own metadata quorum, which Tidemill does not have
    UNSUPPORTED = "unsupported"  # a feature that Tidemill does not have (yet)


# Given a key's name and a parsed value; raises ConfigError.
Check: TypeAlias = Callable[[str, Value], None]


class Constraint(NamedTuple):
    """A limit on values: how the reference page prints it, and the check itself."""

    text: str
    check: Check


class ConfigKey(NamedTuple):
    """One key. `default` is in text form, as a file would hold it; None means unset."""

    name: str
    type: ConfigType
    default: str | None
    doc: str
    unit: str = ""
    constraint: Constraint | None = None
    update: Update = Update.READ_ONLY
    status: Status = Status.SUPPORTED
    section: str = ""
    default_2_8: str | None = None
    kafka_default: str | None = None  # set where Tidemill's default is another one
    own: bool = False  # Tidemill's own key; Kafka does not know it

    @property
    def sensitive(self) -> bool:
        """Secrets are never shown: not in answers, logs, errors or files we write."""
        return self.type is ConfigType.PASSWORD


class Section:
    """Makes the keys that share a heading on the reference page."""

    __slots__ = ("title",)

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(
        self,
        name: str,
        kind: ConfigType,
        default: str | None,
        doc: str,
        *,
        unit: str = "",
        constraint: Constraint | None = None,
        update: Update = Update.READ_ONLY,
        status: Status = Status.SUPPORTED,
        default_2_8: str | None = None,
        kafka_default: str | None = None,
        own: bool = False,
    ) -> ConfigKey:
        return ConfigKey(
            name,
            kind,
            default,
            doc,
            unit,
            constraint,
            update,
            status,
            self.title,
            default_2_8,
            kafka_default,
            own,
        )
