#!/bin/sh
# Kafka's kafka-delete-records.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-delete-records
. "$(dirname -- "$0")/run-tool"
