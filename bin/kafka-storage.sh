#!/bin/sh
# Kafka's kafka-storage.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-storage
. "$(dirname -- "$0")/run-tool"
