#!/bin/sh
# Kafka's kafka-get-offsets.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-get-offsets
. "$(dirname -- "$0")/run-tool"
