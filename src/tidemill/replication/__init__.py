"""A replica's role: leadership, in-sync replicas, the high watermark, and what each ack means.

Start at `partition.py`, one partition as its broker sees it, then `manager.py`, which makes the
partitions follow the cluster's image. Under them are pure state machines: a leader's term in
`leading.py` (with `progress.py` and `isr.py`), a follower's fetching in `follower.py` (with
`alignment.py`, `copying.py` and `session.py`). It may import the client (followers fetch like
consumers do), storage, image, wire, config and what lies below them; the broker's handlers stand on
it.
"""
