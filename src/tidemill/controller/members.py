"""Brokers that come and go: what the controller does about them.

A broker is alive as long as its registration, an ephemeral node, is there. `review` compares the
registrations with the image and settles the difference. A registration that no controller has
taken note of before is a new incarnation, however fast it came: what it led is somebody else's, and
if it may have lost records it is taken to have none (rules A3 and F3). It stays fenced until it has
confirmed an image in which it is registered (`admit`, rule K2).

A new controller begins with `take_over`: brokers may have come and gone with nobody looking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tidemill.controller import tree, trust
from tidemill.controller.changes import Changes
from tidemill.controller.election import complete_reassignment
from tidemill.controller.ledger import Ledger
from tidemill.controller.liveness import (
    broker_unfenced,
    brokers_failed,
    controlled_shutdown,
    replicas_lost,
    take_stock,
    unclean_restart,
)
from tidemill.controller.loading import (
    load_image,
    read_incarnations,
    read_registrations,
    remnants,
)
from tidemill.controller.office import Office
from tidemill.controller.policies import Policies
from tidemill.controller.trust import Noted, Registrations
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import (
    BrokerImage,
    ClusterImage,
    LeaderRecovery,
    ReplicaTrouble,
    with_broker,
    with_controller,
    without_broker,
)
from tidemill.types import BrokerEpoch, BrokerId, TopicPartition

log = logging.getLogger(__name__)

MUSTER_MS_MAX = 20_000
_MUSTER_STEP_MS = 50


class Members:
    """The brokers of the cluster, as the controller in office sees to them."""

    def __init__(self, office: Office, policies: Policies) -> None:
        self._office = office
        self._policies = policies
        self.known_count = 0
        """How many brokers there have ever been."""

    async def wait_for(self, count: int) -> None:
        """Wait, not for ever, until so many brokers have joined the cluster at some time."""
        waited_ms = 0
        while self._office.active and self.known_count < count:
            if waited_ms >= MUSTER_MS_MAX:
                raise ApiError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The cluster is still coming up: {self.known_count} of {count} brokers "
                    "(cluster.brokers.min) have joined.",
                )
            await asyncio.sleep(_MUSTER_STEP_MS / 1000)
            waited_ms += _MUSTER_STEP_MS

    # A new controller

    async def take_over(self) -> None:
        """Put in order what is stored, and begin; the caller has won, and holds the lock."""
        office = self._office
        nodes = await office.read_tree("/")
        registered, noted = read_registrations(nodes), read_incarnations(nodes)
        image = with_controller(load_image(nodes), office.broker_id, office.epoch)
        image = replace(image, brokers=self._noted_brokers(registered, noted))
        fresh = trust.fresh(registered, noted)
        is_new = self._is_new_process(fresh, noted)
        ledger = Ledger(image, self._policies.of, spares_the_sole=is_new)
        self._distrust(ledger, fresh, noted)
        # Whoever is not alive goes at the same moment: those who were in sync together are all
        # complete, and whichever comes back first may lead.
        ledger.take(take_stock(ledger.image, self._policies.of))
        self._show(ledger, registered)
        self._finish_moves(ledger)
        # Should the commit be cut, an incarnation is not noted before all that follows from it.
        await office.commit([*ledger.settle(), *remnants(nodes), *trust.notes(fresh, noted)])
        self.known_count = len(noted.keys() | registered.keys())
        await office.begin(ledger.image)

    def _is_new_process(self, fresh: Registrations, noted: Noted) -> bool:
        """Whether we have just come up: what only we hold then goes on as it was.

        After a lost session it does not: our partitions wait to be told that they lead (rule A9).
        """
        own = fresh.get(self._office.broker_id)
        last = noted.get(self._office.broker_id)
        return own is not None and not trust.is_same_process(own, last)

    def _noted_brokers(
        self, registered: Registrations, noted: Noted
    ) -> Mapping[BrokerId, BrokerImage]:
        """Those of which the controller before us took note: alive, unless we know better."""
        brokers = {}
        for broker_id, node in registered.items():
            if trust.is_noted(noted, broker_id, node):
                broker = tree.read_broker(broker_id, node)
                known = self._office.image.brokers.get(broker_id)
                if known is not None and known.epoch == broker.epoch:
                    leaving = known.in_controlled_shutdown
                    broker = replace(broker, fenced=known.fenced, in_controlled_shutdown=leaving)
                if broker_id == self._office.broker_id:
                    # The one before us may have gone without letting us in: nobody else would.
                    broker = replace(broker, fenced=False)
                brokers[broker_id] = broker
        return MappingProxyType(brokers)

    def _finish_moves(self, ledger: Ledger) -> None:
        """A move that can end, ends: whoever began to write that may not have come to its end.

        After an unclean election it waits until the leader says that it has recovered.
        """
        changes = Changes(ledger.image, self._policies.of)
        for topic in ledger.image.topics.values():
            for partition in topic.partitions:
                is_clean = partition.recovery is LeaderRecovery.RECOVERED
                if is_clean and complete_reassignment(partition) is not partition:
                    changes.settle(topic, partition)
        ledger.take(changes.made)

    # Coming and going

    async def review(self) -> None:
        """Compare registrations with the image, and settle the difference."""
        office = self._office
        async with office.deciding():
            registered = read_registrations(await office.read_tree(tree.BROKER_IDS))
            noted = read_incarnations(await office.read_tree(tree.BROKER_EPOCHS))
            fresh = trust.fresh(registered, noted)
            is_new = self._is_new_process(fresh, noted)
            ledger = Ledger(office.image, self._policies.of, spares_the_sole=is_new)
            self._distrust(ledger, fresh, noted)
            self._remove(ledger, registered, fresh)
            self._show(ledger, registered)
            self._finish_moves(ledger)
            if ledger.image is office.image:
                return
            # The notes go last, as in `take_over`.
            await office.commit([*ledger.settle(), *trust.notes(fresh, noted)])
            self.known_count = len(noted.keys() | registered.keys())
            await office.publish(ledger.image)

    def _distrust(self, ledger: Ledger, fresh: Registrations, noted: Noted) -> None:
        """Brokers that came back and may have lost records are taken to have lost them (F3).

        A topic whose records are flushed before they are committed loses nothing by a crash.
        """
        for broker_id, node in fresh.items():
            last = noted.get(broker_id)
            if not trust.lost_nothing(node, last):
                lossless = trust.lossless_topics(ledger.image, broker_id, node, last)
                changes = unclean_restart(ledger.image, broker_id, self._policies.of)
                ledger.take(change for change in changes if change.topic not in lossless)

    def _remove(self, ledger: Ledger, registered: Registrations, fresh: Registrations) -> None:
        """Those who are gone, and those who were before they came back, lead nothing."""
        gone = [broker_id for broker_id in ledger.image.brokers if broker_id not in registered]
        if gone:
            log.warning("brokers %s are gone", ", ".join(map(str, gone)))
        if gone or fresh:
            ledger.take(brokers_failed(ledger.image, [*gone, *fresh], self._policies.of))
        for broker_id in gone:
            ledger.image = without_broker(ledger.image, broker_id)

    def _show(self, ledger: Ledger, registered: Registrations) -> None:
        """Every incarnation is in the image: others wait for their first one, we have ours."""
        for broker_id, node in sorted(registered.items()):
            known = ledger.image.brokers.get(broker_id)
            if known is not None and known.epoch == node.stat.created:
                continue
            is_us = broker_id == self._office.broker_id
            broker = replace(tree.read_broker(broker_id, node), fenced=not is_us)
            ledger.image = with_broker(ledger.image, broker)
            if is_us:
                ledger.take(broker_unfenced(ledger.image, broker_id, self._policies.of))

    async def admit(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        """A fenced broker has taken over an image in which it is registered: it may lead now."""
        office = self._office
        async with office.deciding():
            broker = office.image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch or not broker.fenced:
                return
            ledger = Ledger(office.image, self._policies.of)
            ledger.take(broker_unfenced(ledger.image, broker_id, self._policies.of))
            ledger.image = with_broker(ledger.image, replace(broker, fenced=False))
            await self._write(ledger)
            log.info("broker %d joined the cluster", broker_id)

    # What brokers ask for

    async def shut_down(self, broker_id: BrokerId, epoch: BrokerEpoch) -> ClusterImage:
        """A broker is about to stop: it gives up what it leads, and is not waited for (K1)."""
        office = self._office
        async with office.deciding():
            broker = self._incarnation(broker_id, epoch)
            if not broker.in_controlled_shutdown:
                ledger = Ledger(office.image, self._policies.of)
                ledger.take(controlled_shutdown(ledger.image, broker_id, self._policies.of))
                leaving = replace(broker, in_controlled_shutdown=True)
                ledger.image = with_broker(ledger.image, leaving)
                await self._write(ledger)
            return office.image

    async def lose_replicas(
        self,
        broker_id: BrokerId,
        epoch: BrokerEpoch,
        lost: Iterable[TopicPartition],
        trouble: ReplicaTrouble,
    ) -> None:
        """A broker cannot use these replicas: others lead the partitions."""
        office = self._office
        async with office.deciding():
            self._incarnation(broker_id, epoch)
            ledger = Ledger(office.image, self._policies.of)
            ledger.take(replicas_lost(ledger.image, broker_id, lost, self._policies.of, trouble))
            if ledger.image is not office.image:
                await self._write(ledger)

    def _incarnation(self, broker_id: BrokerId, epoch: BrokerEpoch) -> BrokerImage:
        """The broker, if it is still the one that asks (rule A3)."""
        broker = self._office.image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.epoch != epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        return broker

    async def _write(self, ledger: Ledger) -> None:
        ops = ledger.settle()
        if ops:
            await self._office.commit(ops)
        await self._office.publish(ledger.image)
