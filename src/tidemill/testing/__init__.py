"""Test tools that ship with Tidemill: a broker process, a disk that crashes, a clock you own.

They may import everything below the command line. Start at `process.py` for a real broker in a
test, at `disk.py` for power cuts at any byte of any write, at `clock.py` for time that waits.
"""
