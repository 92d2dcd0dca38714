#!/bin/sh
# Kafka's kafka-console-producer.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-console-producer
. "$(dirname -- "$0")/run-tool"
