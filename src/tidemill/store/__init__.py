"""The small consistent store that a cluster leans on: one protocol, several engines.

`base.py` says what a store promises, `transaction.py` how a commit changes the tree (shared by the
engines that hold the tree themselves), `memory.py` is the engine for simulations, `sqlite.py` the
embedded one, `zookeeper.py` the one for several machines; `url.py` finds the engine for an address.
It may import `image` and what lies below. Start at `base.Store`.
"""
