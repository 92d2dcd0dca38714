#!/bin/sh
# Kafka's kafka-console-consumer.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-console-consumer
. "$(dirname -- "$0")/run-tool"
