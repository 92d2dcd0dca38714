#!/bin/sh
# Kafka's kafka-verifiable-producer.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-verifiable-producer
. "$(dirname -- "$0")/run-tool"
