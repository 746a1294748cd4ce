"""What happens to a replica, and what it asks its shell to do: values without methods.

A shell first takes over the role: one that begins to lead begins the epoch at the end of its log, and one that ceases
to refuses what waits. Then it carries the actions out in their order, and reports each that takes time by an event. If
it cannot append, it leaves out the actions that follow, and reports `NotAppended`; what else it cannot do is a failure.
So the bounds that a replica has of its log are always those of the log.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from warmlog_broker.replication.alignment import Diverging, Epochs, Log
from warmlog_broker.replication.record import Nodes, PartitionRecord

NEVER = -1_000_000_000
"""A time before all others, in milliseconds."""
NO_DIVERGENCE = Diverging(-1, -1)


class Times(msgspec.Struct, frozen=True):
    """How long things may take, in milliseconds."""

    lag_ms: int = 10_000
    """A member that was not at the leader's end for so long leaves the in-sync set."""
    confirmation_ms: int = 2_000
    """A leader that could not confirm itself for so long serves no reader."""
    rank_ms: int = 150
    """The second candidate stands so much later than the first, and so on."""
    grace_ms: int = 2_000
    """A candidate that has heard from the leader waits so long for its registration to come back."""
    flush_ms: int = 10_000
    """A leader that could not flush for so long hands over."""
    hand_over_ms: int = 1_000
    """A leader that hands over waits so long for all to be committed."""
    retry_ms: int = 50
    """Before a fetch is sent again, or a write of unknown outcome for the first time."""

    @property
    def unconfirmed_ms(self) -> int:
        """A fetch without an echo for so long is answered."""
        return self.confirmation_ms * 3 // 8


class Session(msgspec.Struct, frozen=True):
    """The registration of a broker, while it is alive."""

    broker_epoch: int
    """The revision at which it was created: no other registration has it."""
    is_ready: bool = True
    """False while the broker hands over what it leads, to stop."""
    was_clean: bool = True
    """Whether it started after a clean stop."""
    rack: str = ""
    has_room: bool = True
    """Whether its disks take records."""


Sessions = Mapping[int, Session]


# What brokers say to each other about a partition. A fetch and a report are events of the leader.


class Fetch(msgspec.Struct, frozen=True):
    """A follower's request for what comes after its log."""

    node: int
    broker_epoch: int
    leader_epoch: int
    number: int
    """Of the request: its answer has the same."""
    offset: int
    last_epoch: int
    """Of the batch before `offset`."""
    flushed: int
    log_start: int
    echo_ms: int
    """The leader's time in the last answer of this epoch that the follower had; NEVER if it had none."""
    refilled_below: int = 0
    """What this leader said in `removed_below` when the follower began with an empty log."""


class Verdict(Enum):
    """What an answer says about the follower's log."""

    AGREES = "agrees"
    DIVERGES = "diverges"
    OUT_OF_RANGE = "out of range"
    """The follower ends before the leader's log begins."""
    REFILL = "refill"
    """What was removed by compaction may come back from the follower's log, if it goes on."""
    REFUSED = "refused"
    """The broker does not lead in the epoch of the request."""


class Answer(msgspec.Struct, frozen=True):
    """A leader's response to a fetch, without its batches."""

    number: int
    leader_epoch: int
    offset: int
    verdict: Verdict
    diverging: Diverging = NO_DIVERGENCE
    high_watermark: int = 0
    log_start: int = 0
    sent_ms: int = 0
    """By the leader's clock."""
    removed_below: int = 0
    """Compaction may have removed tombstones and markers below this offset."""


class Report(msgspec.Struct, frozen=True):
    """A follower's word that it has flushed up to an offset; the next fetch says the same."""

    node: int
    broker_epoch: int
    leader_epoch: int
    flushed: int


# Events.


class RecordSeen(msgspec.Struct, frozen=True):
    """The store has this record at this revision: from a watch, a read or the result of a write.

    `began_ms` is set for a linearizable read: the time at which it began.
    """

    record: PartitionRecord | None
    """None if the topic was deleted."""
    revision: int
    began_ms: int | None = None


class SessionsSeen(msgspec.Struct, frozen=True):
    """The registered brokers, and this broker's own registration; 0 if it has none.

    The record as of this broker's registration, or a later one, was seen before.
    """

    sessions: Sessions
    broker_epoch: int


class Outcome(Enum):
    """Of a conditional write."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It may have been applied, and may still be."""


class Written(msgspec.Struct, frozen=True):
    """The outcome of a write; after FAILED with the record that is there."""

    number: int
    outcome: Outcome
    revision: int = 0
    record: PartitionRecord | None = None


class Answered(msgspec.Struct, frozen=True):
    """The answer to a fetch has come, with batches that end at `next_offset`; `epochs` begin within.

    If the log is empty, and begins within the first batch, `next_offset` is where that begins: before the log's end.
    """

    answer: Answer
    next_offset: int
    epochs: Epochs = ()


class NotAppended(msgspec.Struct, frozen=True):
    """The disk has refused what was to be appended, or the rest of it: the bounds of the log. Later it may take it."""

    log: Log


class Produced(msgspec.Struct, frozen=True):
    """This broker has appended as the leader, and flushes it."""

    end: int


class Flushed(msgspec.Struct, frozen=True):
    """A flush is done: the log was on disk up to `end` after so many truncations."""

    end: int
    truncations: int


class Cut(msgspec.Struct, frozen=True):
    """The log was cut, or emptied, durably: its bounds."""

    log: Log


class StartRaised(msgspec.Struct, frozen=True):
    """The log begins at `start` now, durably, and has these epochs."""

    start: int
    epochs: Epochs


class Compacted(msgspec.Struct, frozen=True):
    """Tombstones and markers below the offset may be gone."""

    removed_below: int


class Failed(msgspec.Struct, frozen=True):
    """The disk has failed, or has damage below the high watermark: the log cannot be trusted any more.

    The shell remembers it over a restart.
    """

    reason: str


class MinIsrSet(msgspec.Struct, frozen=True):
    """The topic's setting, as far as it applies to this partition."""

    min_isr: int


class RecoveryAsked(msgspec.Struct, frozen=True):
    """This replica is to lead although what is committed may be lost: by an operator's word, or as it has most of all
    that are left. `nonce` names the recovery."""

    nonce: str


class TargetSet(msgspec.Struct, frozen=True):
    """The replicas that an operator wants; None if they may stay."""

    replicas: Nodes | None


class HandOverAsked(msgspec.Struct, frozen=True):
    """The broker stops, or another replica is preferred: `to`, or the one that has most."""

    to: int | None = None


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed. What brokers have said of all fetches between them counts for those of this replica."""

    heard_ms: int = NEVER
    """When the leader last said something, that has the fetch which is under way."""
    echoes: Mapping[int, int] = {}
    """The leader's times that followers have echoed whose fetches it holds."""


Event = (
    RecordSeen | SessionsSeen | Written | Fetch | Answered | NotAppended | Report | Produced | Flushed | Cut
    | StartRaised | Compacted | Failed | MinIsrSet | HandOverAsked | RecoveryAsked | TargetSet | Ticked
)  # fmt: skip


# Actions.


class Write(msgspec.Struct, frozen=True):
    """Write the record if the store has it at `revision`, and each broker of `sessions` is registered under its epoch;
    0: is not registered. The shell reports `Written`."""

    number: int
    record: PartitionRecord
    revision: int
    sessions: Mapping[int, int]


class Send(msgspec.Struct, frozen=True):
    """Send a fetch or a report to the leader, or an answer to a follower."""

    to: int
    message: Fetch | Report | Answer


class Hold(msgspec.Struct, frozen=True):
    """Answer this fetch by `serving.answer` as soon as there is something to say, or after a while."""

    fetch: Fetch


class Append(msgspec.Struct, frozen=True):
    """Append the batches of the answer that has just come, as a follower, and have them flushed."""


class Flush(msgspec.Struct, frozen=True):
    """Make what the log has durable; the shell reports `Flushed`."""


class Truncate(msgspec.Struct, frozen=True):
    """Cut the log at `end`, and remove epochs that began there. The shell reports `Cut`."""

    end: int


class Empty(msgspec.Struct, frozen=True):
    """Empty the log, which then begins and ends at `start`; the shell reports `Cut`.

    The next batch begins at `base`, and holds `start`; None if it begins at `start` or later.
    """

    start: int
    removed_below: int
    base: int | None = None


class Commit(msgspec.Struct, frozen=True):
    """The high watermark is raised to the offset: what waits below it is answered."""

    high_watermark: int


class RaiseStart(msgspec.Struct, frozen=True):
    """Remove what is before the offset; the shell reports `StartRaised`."""

    start: int


class Register(msgspec.Struct, frozen=True):
    """Register under a new broker epoch, so that fetches of this one count no more; reported by `SessionsSeen`."""


class ReadRecord(msgspec.Struct, frozen=True):
    """Read the record from the store, linearizably; the shell reports `RecordSeen` with `began_ms`."""


class Obey(msgspec.Struct, frozen=True):
    """Remember that the recovery with this nonce was obeyed."""

    recovering: str


class Alarm(msgspec.Struct, frozen=True):
    """Tell the operator."""

    text: str


Action = (
    Write | Send | Hold | Append | Flush | Truncate | Empty | Commit | RaiseStart | Register | ReadRecord | Obey | Alarm
)
