"""Whole clusters under virtual time, from one seed: real brokers and clients, and all that fails.

`run.run_seed` is one life of a cluster; `plan.py` says what a seed decides, `world.py` is the
machines and what joins them, `workload.py` the clients, `nemesis.py` what goes wrong, `watcher.py`
the invariants that are looked at all the time, `report.py` what came of it.
"""
