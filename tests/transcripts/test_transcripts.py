"""Every transcript in this folder is played, and its answers are compared line by line.

After a change that is meant to change answers, `TRANSCRIPTS_REWRITE=1` writes the new ones; read
the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.transcripts.player import Player

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(path.name for path in FOLDER.glob("*.txt"))


def replay(lines: list[str]) -> list[str]:
    """The transcript with the answers that its commands bring today."""
    player, played = Player(), []
    for line in lines:
        if line.startswith("$ "):
            played.append(line)
            played += player.play(line[2:])
        elif line.startswith("#") or not line:
            played.append(line)
    return played


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str) -> None:
    path = FOLDER / name
    expected = path.read_text().splitlines()
    played = replay(expected)
    if os.environ.get("TRANSCRIPTS_REWRITE"):
        path.write_text("\n".join(played) + "\n")
        return
    assert played == expected
