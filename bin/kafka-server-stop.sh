#!/bin/sh
# Kafka's kafka-server-stop.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-server-stop
. "$(dirname -- "$0")/run-tool"
