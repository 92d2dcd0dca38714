"""What Spark says about an expression, in a sentence and with something to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_DECORATION = re.compile(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+.*$", re.DOTALL)


class SparkFailedError(TidemillError):
    """Spark could not do its part; says why in one sentence."""


def is_sparks(error: BaseException) -> bool:
    """Whether something was raised by Spark, or on the way to its JVM."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def explain(refused: PySparkException) -> tuple[str, str]:
    """A message and a suggestion for what Spark's parser or analyzer refused."""
    condition = refused.getCondition() or ""
    parameters = refused.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = _plain(parameters.get("objectName", "?"))
        near = [_plain(each) for each in parameters.get("proposal", "").split(", ") if each]
        own = [each for each in near if not each.startswith("_tidemill")]
        return f"there is no column `{name}` here", f"did you mean {_either(own)}?" if own else ""
    if condition == "UNRESOLVED_ROUTINE":
        name = _plain(parameters.get("routineName", "?"))
        return f"there is no function `{name}`", "Spark's SQL functions are what there is"
    if condition == "PARSE_SYNTAX_ERROR":
        return f"the expression cannot be read at {parameters.get('error', '?')}", ""
    return first_sentence(str(refused)), ""


def first_sentence(text: str) -> str:
    """The first line of Spark's own words, without its codes."""
    line = _DECORATION.sub("", text.strip().split("\n")[0]).strip()
    return line or text.strip().split("\n")[0]


def _plain(name: str) -> str:
    return name.replace("`", "").strip()


def _either(names: list[str]) -> str:
    return " or ".join(f"`{name}`" for name in names[:3])


def is_impatience(cause: str) -> bool:
    """Whether Spark gave up on a Python process that was slow to start, on a busy machine."""
    return "Python worker failed to connect back" in cause


_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\]\s*(.*?)\s*(?:SQLSTATE|$)", re.MULTILINE)
_PYTHON = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Lost\w*): .+$", re.MULTILINE)
_THROWN = re.compile(r"An error occurred while calling \S+\s*: (?:[\w$]+\.)+[\w$]+: (.+)")
_STATE = re.compile(
    r"STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*|"
    r"STATE_STORE_\w*UNSUPPORTED_\w+|STATE_STORE_OPERATION_OUT_OF_ORDER"
)


def root_cause(text: str) -> str:
    """The line of a long failure that says why: our own words, Python's last, or Spark's first."""
    if raised := _RAISED.search(text):
        return raised[1]
    if thrown := _THROWN.match(text):
        return thrown[1].strip()
    if _STATE.search(text):
        said = first_sentence(text).rstrip(".")
        return (
            f"{said}: its state was made by another version of the pipeline; "
            "undo the change, rename the sink, or run with --reset"
        )
    python = [line for line in _PYTHON.findall(text) if not line.startswith(("org.", "java."))]
    return python[-1].strip() if python else first_sentence(text)
