"""A cluster of real broker processes under load and under faults, and a judgement of what came out.

    python -m tidemill.testing.faults --minutes 30 --store zookeeper

Three brokers, replication factor 3, two in sync at least. Clients write and read all the time while
processes are killed and stopped, links cut, disks filled and segments damaged, one fault every 10
to 15 seconds. In the end everything that the clients were told is compared with what is there.

Read `plan` (which faults, from one seed), `cluster` (what they strike), `strikes` (how), `load`
(what clients do meanwhile), `judge` (what it came to), and `runner`, which puts them together.
"""
