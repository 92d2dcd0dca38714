#!/bin/sh
# Kafka's kafka-dump-log.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-dump-log
. "$(dirname -- "$0")/run-tool"
