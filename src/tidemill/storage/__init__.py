"""One partition's durable log, in Kafka's own directory and file formats.

Start with `log` (append, read, truncate) and follow it down to `segment` and `index`; `manager`
opens, creates and deletes the logs of all log directories; `recovery` says what happens after a
crash. Everything that touches a disk goes through `files`, so a test can cut the power at any byte.

May import: `wire`, `config` and the base layer. Nothing here awaits: a log belongs to the event
loop, work that blocks is handed to an `Executor`.
"""
