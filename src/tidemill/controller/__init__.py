"""The one elected brain: it places replicas, changes topics and settings, and tells everyone.

Decisions are pure functions of an image (`topics.py`, `settings.py`, `placement.py`): they return
what to write and what to answer. Those about who leads and who is in sync all end in `election.py`:
brokers that come and go (`liveness.py`), leaders' proposals (`isr_changes.py`), moves
(`reassignment.py`, planned by `rebalance.py`) and elections on command (`preferred.py`).

`office.py` makes decisions durable, one after the other, each conditional on the controller's
epoch, and publishes the next image; `ledger.py` turns several rounds of them into one write. What
is asked for is in `topic_changes.py`, `setting_changes.py` and `partition_changes.py`, what happens
by itself in `members.py`. `propagation.py` tells the other brokers, by the messages of `deltas.py`;
`forwarding.py` and `remote.py` are the other direction. `tree.py` knows the paths and JSON values
in the store, `loading.py` reads them back, `registration.py` enters brokers. It may import
`replication` and what lies below. Start at `controller.Controller`.
"""

from tidemill.controller.controller import Controller

__all__ = ["Controller"]
