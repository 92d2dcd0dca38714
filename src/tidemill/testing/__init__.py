"""Test tools that ship with Tidemill: processes, disks and networks that fail when you say so.

They may import everything below the command line.

* Real brokers: `in_process.py` has a cluster of them within the test, quick to start and open to a
  look inside. As processes, `process.py` starts one, `cluster.py` several, `zookeeper.py` an
  ensemble, and `proxy_control.py` breaks the network in front of them. `validation/`
  shows with them whether settings keep what they promise.
* Simulation: `loop.py` runs asyncio code in virtual time, `network.py` connects simulated hosts,
  `disk.py` cuts the power at any byte of any write, `clock.py` is time that waits.
* Judgement: `history.py` records what clients did and saw, `checker.py` finds what must not be,
  `anomalies.py` knows the words and what given settings promise.
"""
