"""`kafka-dump-log`: print what is in a partition's files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, UsageError

_KAFKA_DECODERS = ("offsets-decoder", "transaction-log-decoder", "cluster-metadata-decoder")


def parser() -> Options:
    p = Options(
        "kafka-dump-log",
        "This tool helps to parse a log file and dump its contents to the console, useful for "
        "debugging a seemingly corrupt log segment.",
    )
    p.value("files", "REQUIRED: comma-separated log and index files.")
    p.flag("print-data-log", "Print keys and values, too.")
    p.flag("deep-iteration", "Print each record, not only batches.")
    p.flag("skip-record-metadata", "Print data without its metadata.")
    p.flag("verify-index-only", "Check indexes without printing them.")
    p.flag("index-sanity-check", "Only check that an index is one.")
    p.value("max-bytes", "Look at so many bytes of a log.", type=int)
    p.value("max-message-size", "Accepted; batches are bounded here.", type=int)
    p.value("key-decoder-class", "String, Long or Integer decoder.")
    p.value("value-decoder-class", "String, Long or Integer decoder.")
    for name in _KAFKA_DECODERS:
        p.flag(name, "Prints the bytes: internal records are not decoded yet.")
    return p


def main(argv: Sequence[str]) -> int:
    from tidemill.errors import TidemillError

    options_parser = parser()
    try:
        options = options_parser.read(argv)
        if not options.files:
            raise UsageError('Missing required argument "[files]"')
        _dump(options)
    except UsageError as error:
        return common.usage(options_parser, error)
    except FileNotFoundError as error:
        common.err(f"{error.filename} (No such file or directory)")
        return 1
    except (TidemillError, OSError) as error:
        common.err(str(error))
        return 1
    return 0


def _dump(options: object) -> None:
    from tidemill.storage.files import OsFiles
    from tidemill.storage.inspect_text import DumpOptions, kafka_dump

    given = vars(options)
    any_decoder = any(given[name.replace("-", "_")] for name in _KAFKA_DECODERS)
    shape = DumpOptions(
        deep_iteration=given["deep_iteration"],
        print_data=given["print_data_log"] or any_decoder,
        skip_record_metadata=given["skip_record_metadata"],
        index_sanity_only=given["index_sanity_check"],
        verify_index_only=given["verify_index_only"],
        max_bytes=given["max_bytes"],
        key_decoder=_decoder(given["key_decoder_class"]),
        value_decoder=_decoder(given["value_decoder_class"]),
    )
    paths = [path.strip() for path in given["files"].split(",") if path.strip()]
    for line in kafka_dump(OsFiles(), paths, shape, cwd=os.getcwd()):
        stream = sys.stdout if line.stream == "out" else sys.stderr
        stream.write(line.text + "\n")
    sys.stdout.flush()


def _decoder(name: str | None) -> Callable[[bytes], str]:
    from tidemill.storage.inspect_text import decode_text

    kind = (name or "").rpartition(".")[2]
    if kind in ("LongDecoder", "IntegerDecoder"):
        return lambda data: str(int.from_bytes(data, "big", signed=True))
    return decode_text
