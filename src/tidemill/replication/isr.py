"""The in-sync replicas of a partition: what is agreed on, and the one change under way.

The leader proposes a new ISR to the controller, which writes it down if nothing has changed since.
Until the leader knows how that went, either set may be the true one, and the controller may elect
from either. So what counts meanwhile is whatever is safe with both (rule C4): replicas that are
being added count at once, replicas that are being removed count until the removal is confirmed.

`IsrState` is that state machine, for one term of leadership. What is worth proposing is decided in
`leading.py`; who carries a proposal to the controller is not known here. An answer is settled by
what it proves (rule C5):

* the controller did it: its word is the new agreed set, at once if nobody leaves. A smaller set
  counts when the image shows it, for the minimum by which the controller judged comes with that;
* it certainly did not, and never will: back to the agreed set;
* it knows something newer: keep counting both until the news arrives (`follow_image`);
* nobody knows: propose exactly the same again. Doing that twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tidemill.errors import ErrorCode
from tidemill.image import PartitionImage
from tidemill.invariant import invariant
from tidemill.types import NO_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

NO_PARTITION_EPOCH = PartitionEpoch(-1)


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A replica by the incarnation that proved to be in sync; -1 where none has been heard yet."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, eq=False)
class IsrProposal:
    """A change of the ISR, as it is sent to the controller; it is itself and equal to no other."""

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    members: tuple[IsrMember, ...]
    added: frozenset[BrokerId]

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        return tuple(member.broker_id for member in self.members)


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The controller's answer; the epochs and the ISR are its own where it has no error."""

    code: ErrorCode
    leader_epoch: LeaderEpoch = NO_EPOCH
    partition_epoch: PartitionEpoch = NO_PARTITION_EPOCH
    isr: tuple[BrokerId, ...] = ()


class Settled(Enum):
    """What is left to do after an answer."""

    DONE = auto()
    """Nothing is under way any more; the high watermark may have become free to move (C6)."""
    WAIT = auto()
    """The next image decides."""
    RETRY = auto()
    """Send the same proposal again, after a while."""


_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_CONTROLLER_KNOWS_BETTER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class IsrState:
    """The ISR during one term of leadership; `leader_epoch` never changes in it."""

    __slots__ = ("_may_be_on_its_way", "committed", "leader_epoch", "partition_epoch", "pending")

    def __init__(self, image: PartitionImage) -> None:
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.committed = frozenset(image.isr)
        self.pending: IsrProposal | None = None
        self._may_be_on_its_way = False
        """Whether a copy of the pending proposal was sent of which nothing was heard."""

    @property
    def maximal(self) -> frozenset[BrokerId]:
        """Every replica that may be in the ISR as the controller sees it (rule C4)."""
        if self.pending is None or not self.pending.added:
            return self.committed
        return self.committed | self.pending.added

    def propose(self, members: tuple[IsrMember, ...]) -> IsrProposal:
        """Begin a change to exactly these members; send what is returned."""
        isr = frozenset(member.broker_id for member in members)
        invariant(self.pending is None, "one ISR change at a time", pending=self.pending)
        invariant(bool(isr), "an ISR is never empty")
        invariant(isr != self.committed, "an ISR change changes something", isr=sorted(isr))
        self.pending = IsrProposal(
            self.leader_epoch, self.partition_epoch, members, isr - self.committed
        )
        self._may_be_on_its_way = False
        return self.pending

    def follow_image(self, image: PartitionImage) -> bool:
        """Take over newer metadata of this term; True if there was any.

        An older one is ignored and an equal one changes nothing (rule A1): the proposal under way
        rests on that very state. A newer one ends it, done or not, since its condition is void.
        """
        if image.partition_epoch <= self.partition_epoch:
            return False
        self._commit(frozenset(image.isr), image.partition_epoch)
        return True

    def settle(self, proposal: IsrProposal, answer: IsrAnswer) -> Settled:
        """Judge the answer to `proposal` (rule C5); one that came too late changes nothing."""
        if proposal is not self.pending:
            return Settled.DONE
        if answer.code is ErrorCode.NONE:
            return self._confirm(answer)
        if answer.code in _CONTROLLER_KNOWS_BETTER:
            return Settled.WAIT
        if answer.code in _REFUSED and self._is_final(answer.code):
            self.pending = None
            return Settled.DONE
        return self.lost(proposal)

    def lost(self, proposal: IsrProposal) -> Settled:
        """Nothing is known of what was sent: a time-out, a lost connection, an unclear error."""
        if proposal is not self.pending:
            return Settled.DONE
        self._may_be_on_its_way = True
        return Settled.RETRY

    def _confirm(self, answer: IsrAnswer) -> Settled:
        if (
            answer.leader_epoch != self.leader_epoch
            or answer.partition_epoch < self.partition_epoch
        ):
            return Settled.WAIT
        if not self.committed <= frozenset(answer.isr):
            # The controller may have judged by a higher minimum than we know of, and count on us
            # not to commit with fewer: the image that shows the change shows the minimum, too.
            return Settled.WAIT
        self._commit(frozenset(answer.isr), answer.partition_epoch)
        return Settled.DONE

    def _is_final(self, code: ErrorCode) -> bool:
        """Whether the refusal holds for every copy of the proposal that was ever sent.

        A replica that is ineligible stays so, for the proposal names its incarnation. What was
        merely not attempted may still be, by a copy of which nothing was heard.
        """
        return code is ErrorCode.INELIGIBLE_REPLICA or not self._may_be_on_its_way

    def _commit(self, isr: frozenset[BrokerId], partition_epoch: PartitionEpoch) -> None:
        self.committed = isr
        self.partition_epoch = partition_epoch
        self.pending = None
        self._may_be_on_its_way = False
