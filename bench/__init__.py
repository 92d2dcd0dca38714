"""Benchmarks: Tidemill beside Apache Kafka in one run, reported as ratios. Start at `run.py`."""
