"""Dispatch: `python -m tidemill.cli.kafka kafka-topics --list ...`."""

from __future__ import annotations

import sys
from importlib import import_module

TOOLS: dict[str, str] = {
    "kafka-topics": "topics",
    "kafka-configs": "configs",
    "kafka-console-producer": "console_producer",
    "kafka-console-consumer": "console_consumer",
    "kafka-producer-perf-test": "producer_perf_test",
    "kafka-consumer-perf-test": "consumer_perf_test",
    "kafka-verifiable-producer": "verifiable_producer",
    "kafka-verifiable-consumer": "verifiable_consumer",
    "kafka-consumer-groups": "consumer_groups",
    "kafka-get-offsets": "get_offsets",
    "kafka-delete-records": "delete_records",
    "kafka-dump-log": "dump_log",
    "kafka-log-dirs": "log_dirs",
    "kafka-reassign-partitions": "reassign_partitions",
    "kafka-leader-election": "leader_election",
    "kafka-broker-api-versions": "broker_api_versions",
    "kafka-storage": "storage",
    "kafka-server-start": "server_start",
    "kafka-server-stop": "server_stop",
}


def main(argv: list[str]) -> int:
    """Run the tool named first; the exit status."""
    name = argv[0].removesuffix(".sh") if argv else ""
    if name not in TOOLS:
        sys.stderr.write(f"no such tool: {name!r}; there are {', '.join(TOOLS)}\n")
        return 1
    module = import_module(f"tidemill.cli.kafka.{TOOLS[name]}")
    try:
        status: int = module.main(argv[1:])
    except BrokenPipeError:
        # `kafka-topics.sh --list | head -1` has read what it wanted.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
