#!/bin/sh
# Kafka's kafka-server-start.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-server-start
. "$(dirname -- "$0")/run-tool"
