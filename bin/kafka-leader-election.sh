#!/bin/sh
# Kafka's kafka-leader-election.sh with Kafka's flags; see docs/cli.md. Runs without activating anything.
TIDEMILL_TOOL=kafka-leader-election
. "$(dirname -- "$0")/run-tool"
