#!/bin/sh
# Kafka's kafka-consumer-perf-test.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-consumer-perf-test
. "$(dirname -- "$0")/run-tool"
