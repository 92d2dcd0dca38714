"""The Kafka-named commands: Kafka's flags, Kafka's output, Kafka's exit codes.

One file per tool, each with `main(argv) -> int`; `python -m tidemill.cli.kafka TOOL ARGS` runs one,
and the scripts in `bin/` call that. `common.py` holds what they share: the option parser with
Kafka's manners, and where the cluster's address comes from, the old `--zookeeper` included.
"""
