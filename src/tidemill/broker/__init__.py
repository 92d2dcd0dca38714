"""The server: listeners, connections, dispatch, one handler file per API family, purgatory.

Start at `server.py` (how a broker comes up and goes down), then `connection.py` (bytes to requests
and back, in order, within bounds), `dispatch.py` (the table of APIs) and `handlers/`. A produce
request goes `connection → dispatch → handlers/produce → replication → storage`. It may import
everything below it (controller, replication, storage, store, image, wire, config) and is imported
by `testing` and `cli` only.
"""
