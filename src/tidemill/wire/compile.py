"""Turns a declaration and a version into functions, once, when they are first needed.

`encoder_for` and `decoder_for` are what `codec` calls; `encoder_text` and `decoder_text` show the
generated source to somebody who wants to read it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from tidemill.wire.declare import Message
from tidemill.wire.decoder import decoder_source
from tidemill.wire.encoder import encoder_source
from tidemill.wire.plan import plan_message
from tidemill.wire.primitives import Source

Encode = Callable[[Message, list[Any], Callable[[int], None]], None]
Decode = Callable[[Source, memoryview, int, int, int], tuple[Any, int]]

_encoders: dict[tuple[type[Message], int], Encode] = {}
_decoders: dict[tuple[type[Message], int], Decode] = {}


def encoder_for(cls: type[Message], version: int) -> Encode:
    """The function that encodes `cls` in `version`; WireError if there is no such version."""
    found = _encoders.get((cls, version))
    if found is None:
        text, scope = encoder_source(plan_message(cls, version))
        found = _encoders[cls, version] = _run(text, scope, f"{cls.__name__} v{version}", "encode")
    return found


def decoder_for(cls: type[Message], version: int) -> Decode:
    """The function that decodes `cls` of `version`; WireError if there is no such version."""
    found = _decoders.get((cls, version))
    if found is None:
        text, scope = decoder_source(plan_message(cls, version))
        found = _decoders[cls, version] = _run(text, scope, f"{cls.__name__} v{version}", "decode")
    return found


def encoder_text(cls: type[Message], version: int) -> str:
    return encoder_source(plan_message(cls, version))[0]


def decoder_text(cls: type[Message], version: int) -> str:
    return decoder_source(plan_message(cls, version))[0]


def _run(text: str, scope: dict[str, Any], title: str, function: str) -> Any:
    """Execute generated source, and keep its lines so that a traceback can show them."""
    filename = f"<{function} {title}>"
    exec(compile(text, filename, "exec"), scope)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return scope[function]
