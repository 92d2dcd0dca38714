"""Log levels of a running broker through `kafka-configs.sh --entity-type broker-loggers`."""

from __future__ import annotations

import re

from tests.cli.helpers import Ran, script

LOGGER = "tidemill.storage"


def loggers(bootstrap: str, *arguments: str) -> Ran:
    of_broker = ("--entity-type", "broker-loggers", "--entity-name", "0")
    return script("kafka-configs", "--bootstrap-server", bootstrap, *of_broker, *arguments)


def level(bootstrap: str) -> str:
    shown = loggers(bootstrap, "--describe")
    assert shown.out.startswith("Dynamic configs for broker-logger 0 are:\n"), shown.err
    (found,) = re.findall(rf"^  {re.escape(LOGGER)}=(\w+) sensitive=false", shown.out, re.M)
    return str(found)


def test_a_level_is_shown_set_and_taken_back(bootstrap: str) -> None:
    before = level(bootstrap)
    done = loggers(bootstrap, "--alter", "--add-config", f"{LOGGER}=ERROR")
    assert done.out == "Completed updating config for broker-logger 0.\n", done.err
    assert (level(bootstrap), before) == ("ERROR", "INFO")
    assert loggers(bootstrap, "--alter", "--delete-config", LOGGER).status == 0
    assert level(bootstrap) == before


def test_what_is_no_logger_or_no_level_is_refused(bootstrap: str) -> None:
    wrong = loggers(bootstrap, "--alter", "--add-config", f"{LOGGER}=ERROR,kafka.none=INFO")
    assert (wrong.status, wrong.err) == (1, "Invalid broker logger(s): kafka.none\n")
    wrong = loggers(bootstrap, "--alter", "--add-config", f"{LOGGER}=LOUD")
    assert wrong.status == 1
    assert "LOUD as it is not a supported log level" in wrong.err
    assert level(bootstrap) == "INFO"
