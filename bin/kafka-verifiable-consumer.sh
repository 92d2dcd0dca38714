#!/bin/sh
# Kafka's kafka-verifiable-consumer.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-verifiable-consumer
. "$(dirname -- "$0")/run-tool"
