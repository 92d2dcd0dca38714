"""Topics as Arrow columns: `ColumnarReader` and `ColumnarProducer`, blocking, for volume.

    with ColumnarReader("127.0.0.1:9092") as reader:
        for piece in reader.read("clicks", 0, start=0, end=1_000_000):
            table = pyarrow.table({"key": piece.key, "value": piece.value})

    with ColumnarProducer("127.0.0.1:9092") as producer:
        producer.send("clicks", None, keys, values, None, None)
        last_offsets = producer.flush()

Both are the asyncio clients on a loop in a thread of their own, which fetch, retry, number and wait
as ever; only what is done per record is done by columns, in the caller's thread. They need the
`spark` extra (numpy, pyarrow; without numba they work, slowly).
"""

from __future__ import annotations

from tidemill.client.columnar_producer import ColumnarProducer
from tidemill.client.columnar_reader import ColumnarReader
from tidemill.client.errors import OffsetsLost

__all__ = ["ColumnarProducer", "ColumnarReader", "OffsetsLost"]
