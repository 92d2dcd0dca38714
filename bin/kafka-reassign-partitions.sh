#!/bin/sh
# Kafka's kafka-reassign-partitions.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-reassign-partitions
. "$(dirname -- "$0")/run-tool"
