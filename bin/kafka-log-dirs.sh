#!/bin/sh
# Kafka's kafka-log-dirs.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-log-dirs
. "$(dirname -- "$0")/run-tool"
