#!/bin/sh
# Kafka's kafka-configs.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-configs
. "$(dirname -- "$0")/run-tool"
