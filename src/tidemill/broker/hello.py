"""How two brokers prove to each other that they belong to one cluster.

Both know the cluster's secret, which is kept in the store. Each side shows a nonce that it has
never used before and an HMAC over both nonces, its role, and who it says it is. So nothing that
was overheard can be shown again, and neither side's proof can pass for the other's.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

NONCE_BYTES = 32
PROOF_BYTES = 32

_ASKING = b"asking"
_ASKED = b"asked"


@dataclass(frozen=True, slots=True)
class Greeting:
    """What both sides know after the first step: who asks, and both nonces."""

    broker_id: int
    broker_epoch: int
    asking_nonce: bytes
    asked_nonce: bytes

    def proof_of_asking(self, secret: bytes) -> bytes:
        return self._proof(secret, _ASKING)

    def proof_of_asked(self, secret: bytes, asked_id: int) -> bytes:
        return self._proof(secret, _ASKED + b"%d" % asked_id)

    def _proof(self, secret: bytes, role: bytes) -> bytes:
        who = b"%d/%d" % (self.broker_id, self.broker_epoch)
        # Parts are hashed with their sizes, so that no two greetings have the same text.
        text = b"".join(
            len(part).to_bytes(4, "big") + part
            for part in (role, who, self.asking_nonce, self.asked_nonce)
        )
        return hmac.new(secret, text, hashlib.sha256).digest()


def same(one: bytes, other: bytes) -> bool:
    """Compare proofs in a time that says nothing about where they differ."""
    return hmac.compare_digest(one, other)
