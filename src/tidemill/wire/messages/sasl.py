"""SaslHandshake (key 17) and SaslAuthenticate (36): agree on a mechanism, then log in.

After a handshake of v0 the mechanism's tokens follow bare; after v1 they are wrapped in
SaslAuthenticate. Its v1 answers with the session's lifetime, v2 is flexible.
"""

from __future__ import annotations

from tidemill.wire.declare import (
    Message,
    binary,
    int16,
    int64,
    string,
    strings,
)


class SaslHandshakeRequest(Message, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = strings()


class SaslAuthenticateRequest(Message, versions="0-2", flexible="2+"):
    auth_bytes: bytes = binary()


class SaslAuthenticateResponse(Message, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64("1+", ignorable=True)
