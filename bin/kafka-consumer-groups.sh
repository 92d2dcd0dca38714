#!/bin/sh
# Kafka's kafka-consumer-groups.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-consumer-groups
. "$(dirname -- "$0")/run-tool"
