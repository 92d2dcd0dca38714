"""The line of a long failure that says why."""

from __future__ import annotations

import pytest

from tidemill.spark.pipeline.spark_errors import first_sentence, is_impatience, root_cause

PYTHON = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted SQLSTATE: XXKST
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "reading.py", line 7, in read
ValueError: first

During handling of the above exception, another exception occurred:

tidemill.client.columnar.OffsetsLost: clicks-0: 5 to 9 are gone

\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
Caused by: java.net.SocketTimeoutException: Timed out
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[STREAM_FAILED] Query ended: [USER_RAISED_EXCEPTION] too bad SQLSTATE: P0001\n\tat",
            "too bad",
        ),
        (PYTHON, "tidemill.client.columnar.OffsetsLost: clicks-0: 5 to 9 are gone"),
        ("[TABLE_GONE] The table is gone. SQLSTATE: 42P01\n+- Plan", "The table is gone."),
        (
            "An error occurred while calling o5.load.\n: org.apache.spark.X: Too slow.\n",
            "Too slow.",
        ),
        ("", ""),
    ],
)
def test_the_cause_of_a_failure(text: str, cause: str) -> None:
    assert root_cause(text) == cause


def test_state_that_does_not_fit_says_what_to_do() -> None:
    text = "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match. SQLSTATE: X"
    assert root_cause(text).startswith("Provided key schema does not match: its state was made by")
    assert "--reset" in root_cause(text)


def test_a_python_process_that_was_slow_to_start_is_told_from_failures() -> None:
    text = "[STREAM_FAILED] Query ended\norg.apache.spark.SparkException: Python worker failed"
    assert not is_impatience(root_cause(text))
    assert is_impatience("Python worker failed to connect back.")


def test_codes_are_left_out_of_a_sentence() -> None:
    assert first_sentence("[A.B_C] Some words. SQLSTATE: 42703; line 1") == "Some words."
