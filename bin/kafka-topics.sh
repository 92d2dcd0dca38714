#!/bin/sh
# Kafka's kafka-topics.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-topics
. "$(dirname -- "$0")/run-tool"
