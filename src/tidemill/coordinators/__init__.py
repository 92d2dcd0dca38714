"""Replicated state machines over internal topics: consumer groups today, transactions later.

A request method of a group returns a `Result`: the answer and the records that make it true. The
`runtime` appends the records to the group's partition of `__consumer_offsets`, replays them into
the state, and lets the answer go once they are committed. Loading a partition replays the same
records with the same code, so what survives a restart is what was answered.

Start at `runtime.py`, then `shard.py`; `classic_group.py` is the protocol of JoinGroup and its
friends, `offsets.py` what groups have committed, `records.py` Kafka's formats of it all.
"""
