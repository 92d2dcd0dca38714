"""How each scenario hurts a cluster, and heals it.

`strike` returns when all brokers run again and every replica of the topic is in sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from tidemill.testing.cluster import ProcessCluster
from tidemill.testing.validation.promises import Scenario, TopicSettings
from tidemill.testing.view import Replicas

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Blow:
    """What a scenario is done to, and how."""

    cluster: ProcessCluster
    topic: str
    settings: TopicSettings
    hold_s: float
    """How long a broker stays down."""
    chance: Random
    say: Say


async def strike(scenario: Scenario, blow: Blow) -> None:
    """Hurt the cluster in this way, and heal it."""
    await _HOW[scenario](blow)
    await blow.cluster.in_sync(blow.topic)
    blow.say("all replicas are in sync again")


async def _kill_leader(blow: Blow) -> None:
    victim = await blow.cluster.leader_of(blow.topic, 0)
    await _kill_and_return(blow, victim, f"which leads partition 0 of {blow.topic}")


async def _kill_controller(blow: Blow) -> None:
    victim = await blow.cluster.controller()
    await _kill_and_return(blow, victim, "the controller")


async def _kill_and_return(blow: Blow, victim: int, what: str) -> None:
    blow.say(f"SIGKILL to broker {victim}, {what}")
    await blow.cluster.kill(victim)
    await asyncio.sleep(blow.hold_s)
    await blow.cluster.start(victim)
    blow.say(f"broker {victim} is back")


async def _restart_all(blow: Blow) -> None:
    for victim in blow.cluster.brokers:
        blow.say(f"broker {victim} stops and starts again")
        await blow.cluster.stop(victim)
        await blow.cluster.start(victim)
        await blow.cluster.in_sync(blow.topic)


async def _elect_uncleanly(blow: Blow) -> None:
    """Bring about what an unclean election is about: nobody is there but a replica that lacks
    records. Whether it may lead is what the topic's settings say."""
    cluster = blow.cluster
    stale = blow.chance.choice(sorted(cluster.brokers))
    others = [number for number in cluster.brokers if number != stale]

    def has_fallen_behind(part: Replicas) -> bool:
        return stale not in part.isr or stale not in part.replicas or len(part.replicas) == 1

    blow.say(f"SIGKILL to broker {stale}, which is to miss some records")
    await cluster.kill(stale)
    await cluster.until(blow.topic, f"broker {stale} out of sync", has_fallen_behind)
    await asyncio.sleep(blow.hold_s)
    blow.say(f"SIGKILL to all others ({', '.join(map(str, others))}); broker {stale} comes back")
    await cluster.kill(*others)
    await cluster.start(stale)
    if blow.settings.unclean_leader_election_enable:
        await cluster.until(
            blow.topic,
            f"broker {stale} leading",
            lambda part: part.leader == stale or stale not in part.replicas,
        )
        blow.say(f"broker {stale} leads, though it lacks records: an unclean election")
    else:
        blow.say(f"broker {stale} may not lead: unclean.leader.election.enable=false")
    await asyncio.sleep(blow.hold_s)
    await cluster.start(*others)
    blow.say("the others are back")


_HOW: dict[Scenario, Callable[[Blow], Awaitable[None]]] = {
    Scenario.LEADER_KILL: _kill_leader,
    Scenario.CONTROLLER_KILL: _kill_controller,
    Scenario.ROLLING_RESTART: _restart_all,
    Scenario.UNCLEAN_ELECTION: _elect_uncleanly,
}
