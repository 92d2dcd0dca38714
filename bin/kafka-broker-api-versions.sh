#!/bin/sh
# Kafka's kafka-broker-api-versions.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-broker-api-versions
. "$(dirname -- "$0")/run-tool"
