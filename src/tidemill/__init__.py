"""Tidemill: an event-streaming platform for Python and Spark that speaks Kafka's wire protocol.

Start reading at ARCHITECTURE.md; every package's docstring says what it is and where to begin.
"""

__version__ = "0.1.0"
