#!/bin/sh
# Kafka's kafka-producer-perf-test.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-producer-perf-test
. "$(dirname -- "$0")/run-tool"
