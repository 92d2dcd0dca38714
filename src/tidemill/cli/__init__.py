"""The command line: the `tidemill` command, and the Kafka-named commands in `cli.kafka`.

Every command is a client like any other: it speaks the protocol through `tidemill.client` and works
against any Kafka. It may import every other layer, but only inside the command that needs it, so
that `tidemill --help` stays fast. Start reading at `main.py`; `root.py` is the table of commands,
`command.py` the life of one command, `render.py` how a result is printed.
"""
