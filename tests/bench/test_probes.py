"""What the benchmark's probes make of the lines that they read."""

from __future__ import annotations

import json
import sys

from bench.probes import JavaProbe, Probe


def ended(kind: type[Probe], lines: list[str]) -> Probe:
    """A probe whose process has printed this and ended."""
    program = f"import sys; sys.stdout.write({chr(10).join(lines)!r})"
    with kind([sys.executable, "-c", program]) as probe:
        probe._process.wait()
        probe._reader.join()
    return probe


def test_an_ack_counts_for_what_was_sent_after_the_moment() -> None:
    probe = ended(Probe, ["10.0 10.1", "10.2 10.9", "10.5 10.8", "10.6 11.0"])
    assert probe.ack_after(10.4) == 10.8
    assert probe.ack_after(9.0) == 10.1
    assert probe.ack_after(10.6) is None


def test_a_java_probe_learns_from_the_log_when_it_sent() -> None:
    """Without it, an ack that was on its way at the moment must not count."""

    def said(offset: int, acked_ms: int) -> str:
        return json.dumps(
            {"name": "producer_send_success", "timestamp": acked_ms, "offset": offset}
        )

    lines = [json.dumps({"name": "startup_complete", "timestamp": 1})]
    lines += [said(0, 10_000), said(1, 10_050), said(2, 12_500)]
    probe = ended(JavaProbe, lines)
    assert probe.ack_after(10.02) == 12.5
    assert probe.ack_after(10.02, {0: 9.9, 1: 10.01, 2: 10.03}) == 12.5
    assert probe.ack_after(10.02, {0: 9.9, 1: 10.03, 2: 10.04}) == 10.05
