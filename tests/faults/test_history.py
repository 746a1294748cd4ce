"""Whatever happens to the broker, its history stays as promised; and the checker notices when it does not."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from broker_process import BrokerProcess
from faults.history.checking import Final, FinalLog, StateLog, check, check_again
from faults.history.final import read_all
from faults.history.nemesis import FAULTS, NEED_POWER_DISK, ON_REQUEST
from faults.history.notes import Notes, Place, WriterNotes, key_of, value_of
from faults.history.run import draw, run
from faults.power.powered import why_not
from wire_client import WireClient, batch_of

WRITER = "w"
NAMES = ["t"]


def history(numbers: list[int], *, acknowledged: dict[int, int], is_idempotent: bool = True) -> tuple[Notes, FinalLog]:
    """One writer's history, and a log that holds its records with these numbers."""
    writer = WriterNotes(WRITER, "t", 0, is_idempotent, sent=10, acknowledged=acknowledged)
    return Notes(writers=[writer]), FinalLog(0, [value_of(WRITER, number) for number in numbers])


def findings(notes: Notes, log: FinalLog, names: list[str] = NAMES) -> list[str]:
    return check(notes, Final({("t", 0): log}, {}, names))


def test_a_good_history_has_no_findings() -> None:
    notes, log = history([0, 1, 2, 3], acknowledged={0: 0, 1: 1, 2: -1})
    notes.note_read(Place("t", 0, 3), value_of(WRITER, 3))
    assert findings(notes, log) == []


@pytest.mark.parametrize(
    ("numbers", "acknowledged", "kind"),
    [
        pytest.param([0, 1], {0: 0, 1: 1, 2: 2}, "lost", id="the last acknowledged record is not there"),
        pytest.param([0, 2], {0: 0, 1: 1}, "lost", id="an acknowledged record is at another offset"),
        pytest.param([0, 1], {2: -1}, "lost", id="one acknowledged without an offset is not there"),
        pytest.param([0, 1, 1], {0: 0}, "duplicate", id="a record is there twice"),
        pytest.param([1, 0], {}, "order", id="records changed places"),
        pytest.param([0, 11], {}, "stranger", id="a record that was not sent yet"),
    ],
)
def test_a_writers_history_gone_wrong_is_noticed(numbers: list[int], acknowledged: dict[int, int], kind: str) -> None:
    notes, log = history(numbers, acknowledged=acknowledged)
    assert [finding.split(":")[0] for finding in findings(notes, log)] == [kind]


def test_what_a_plain_writer_may_do_is_no_finding() -> None:
    notes, log = history([0, 1, 1, 2], acknowledged={1: 1, 2: 3}, is_idempotent=False)
    assert findings(notes, log) == []


def test_changed_bytes_are_noticed() -> None:
    notes, log = history([0], acknowledged={})
    log.values[0] = log.values[0] + b"x"
    assert findings(notes, log)[0].startswith("changed")


def test_a_record_that_was_read_and_is_gone_or_another_now_is_noticed() -> None:
    for offset in (0, 1):
        notes, log = history([0], acknowledged={})
        notes.note_read(Place("t", 0, offset), value_of(WRITER, 5))
        assert findings(notes, log)[0].startswith("unread")


def test_reading_two_values_at_one_place_is_noticed() -> None:
    notes, log = history([0], acknowledged={})
    for number in (0, 1):
        notes.note_read(Place("t", 0, 0), value_of(WRITER, number))
    assert findings(notes, log)[0].startswith("contradiction")


def test_gaps_and_topics_that_went_or_came_back_are_noticed() -> None:
    notes, log = history([0], acknowledged={})
    log.gaps.append("a batch begins at 7 and not at 1")
    notes.created = {"made": True, "asked for": False, "t": True}
    notes.deleted = {"t": True}
    assert [finding.split(":")[0] for finding in findings(notes, log)] == ["gap", "topic", "topic"]


def test_a_log_that_was_trimmed_owes_nothing_below_its_start() -> None:
    notes, _ = history([], acknowledged={0: 0, 1: 1, 2: 2})
    notes.may_begin_at["t", 0] = 2
    notes.note_read(Place("t", 0, 0), value_of(WRITER, 0))
    assert findings(notes, FinalLog(2, [value_of(WRITER, 2)])) == []


def test_a_start_below_what_was_given_up_is_noticed() -> None:
    notes, log = history([0, 1, 2], acknowledged={})
    notes.given_up["t", 0] = notes.may_begin_at["t", 0] = 2
    assert findings(notes, log)[0].startswith("given up")
    assert findings(notes, FinalLog(2, log.values[2:])) == []


def test_records_that_are_gone_from_the_start_and_nobody_gave_up_are_noticed() -> None:
    notes, log = history([0, 1, 2], acknowledged={0: 0, 1: 1, 2: 2})
    trimmed = FinalLog(1, log.values[1:])
    assert [finding.split(":")[0] for finding in findings(notes, trimmed)] == ["start"]
    notes.may_begin_at["t", 0] = 1
    assert findings(notes, trimmed) == []
    assert findings(notes, FinalLog(2, log.values[2:]))[0].startswith("start")
    notes.retained_topics = frozenset(["t"])
    assert findings(notes, FinalLog(2, log.values[2:])) == []


def test_records_of_a_plain_writer_that_changed_places_are_noticed() -> None:
    notes, log = history([0, 2, 1], acknowledged={}, is_idempotent=False)
    assert [finding.split(":")[0] for finding in findings(notes, log)] == ["order"]
    notes, log = history([0, 1, 2, 1], acknowledged={}, is_idempotent=False)
    assert findings(notes, log) == []


def state_of(*numbers: int) -> StateLog:
    """A compacted log that holds these records of the writer, each at the offset of its number."""
    return StateLog({number: (key_of(number), value_of(WRITER, number)) for number in numbers})


def state_findings(state: StateLog, acknowledged: dict[int, int], notes: Notes | None = None) -> list[str]:
    writer = WriterNotes(WRITER, "t", 0, is_idempotent=True, is_keyed=True, sent=100, acknowledged=acknowledged)
    notes = notes or Notes()
    notes.writers = [writer]
    return check(notes, Final({}, {("t", 0): state}, NAMES))


SAME_KEY = [number for number in range(100) if key_of(number) == key_of(1)]


def test_a_compacted_log_may_lack_what_a_later_record_of_its_key_has_replaced() -> None:
    assert state_findings(state_of(SAME_KEY[1]), {SAME_KEY[0]: SAME_KEY[0]}) == []


@pytest.mark.parametrize(
    ("state", "acknowledged", "kind"),
    [
        pytest.param(state_of(2), {SAME_KEY[0]: 1}, "lost", id="nothing left of an acknowledged key"),
        pytest.param(state_of(SAME_KEY[0]), {SAME_KEY[1]: 1}, "lost", id="an older value came back"),
        pytest.param(StateLog({0: (key_of(2), value_of(WRITER, 2)), 1: (key_of(1), value_of(WRITER, 1))}), {}, "order"),
        pytest.param(StateLog({0: (b"else", value_of(WRITER, 2))}), {}, "stranger", id="another key"),
        pytest.param(StateLog({0: (key_of(2), value_of(WRITER, 2) + b"x")}), {}, "changed", id="other bytes"),
    ],
)
def test_a_compacted_log_gone_wrong_is_noticed(state: StateLog, acknowledged: dict[int, int], kind: str) -> None:
    assert [finding.split(":")[0] for finding in state_findings(state, acknowledged)] == [kind]


def test_gaps_of_a_compacted_log_are_noticed() -> None:
    state = state_of(2)
    state.gaps.append("a batch begins at 1, before 3")
    assert [finding.split(":")[0] for finding in state_findings(state, {})] == ["gap"]


def test_what_cannot_be_read_is_a_gap_also_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        client.produce("t", batch_of([b"x" * 100]))
        (path,) = (tmp_path / "data" / "t-0").glob("*.log")
        with path.open("r+b") as file:
            file.write(bytes(61))
        final = read_all(broker.address, ["t"], ["t"], 1, NAMES)
    for texts in (check(Notes(), final), check_again(final, final, Notes())):
        assert [finding.split(":")[0] for finding in texts] == ["gap", "gap"]
        assert "cannot be read" in texts[0]


def test_a_compacted_record_that_was_read_and_is_another_now_is_noticed() -> None:
    notes = Notes()
    notes.note_read(Place("t", 0, 1), b"else")
    notes.note_read(Place("t", 0, 2), b"compacted away")
    assert [finding.split(":")[0] for finding in state_findings(state_of(1), {}, notes)] == ["unread"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(FinalLog(0, [b"a", b"b"]), FinalLog(0, [b"a"]), id="the end is gone"),
        pytest.param(FinalLog(1, [b"b"]), FinalLog(0, [b"a", b"b"]), id="the start went back"),
        pytest.param(FinalLog(0, [b"a", b"b"]), FinalLog(1, [b"c"]), id="another value"),
    ],
)
def test_another_log_after_a_restart_is_noticed(before: FinalLog, after: FinalLog) -> None:
    assert check_again(Final({("t", 0): before}, {}, NAMES), Final({("t", 0): after}, {}, NAMES), Notes())
    assert check_again(Final({("t", 0): before}, {}, NAMES), Final({("t", 0): before}, {}, NAMES), Notes()) == []


def test_a_topic_that_came_or_went_by_a_restart_is_noticed() -> None:
    assert check_again(Final({}, {}, ["a", "b"]), Final({}, {}, ["a"]), Notes())
    assert check_again(Final({}, {}, ["a"]), Final({}, {}, ["a", "b"]), Notes())
    assert check_again(Final({}, {}, ["a", "b"]), Final({}, {}, ["b", "a"]), Notes()) == []
    assert check_again(Final({}, {}, ["a"]), Final({}, {}, ["a", "b"]), Notes(created={"b": False})) == []
    assert check_again(Final({}, {}, ["a", "b"]), Final({}, {}, ["a"]), Notes(deleted={"b": True}))


def test_another_state_after_a_restart_is_noticed() -> None:
    first, later = SAME_KEY[:2]

    def again(before: StateLog, after: StateLog) -> list[str]:
        return check_again(Final({}, {("t", 0): before}, NAMES), Final({}, {("t", 0): after}, NAMES), Notes())

    assert again(state_of(first, later), state_of(later)) == []
    assert again(state_of(first, later), state_of(first))
    assert again(state_of(first), state_of(first, later))


def test_a_partition_that_is_offline_after_the_last_restart_is_noticed() -> None:
    before, after = Final({}, {}, NAMES, ["t-0"]), Final({}, {}, NAMES, ["u-1"])
    assert check_again(before, after, Notes()) == ["offline: u-1 is offline after a restart"]
    assert check_again(before, Final({}, {}, NAMES), Notes()) == []


KINDS = [name for name in FAULTS if name not in ON_REQUEST and not (why_not() and name in NEED_POWER_DISK)]
FAULT_COUNT = len(KINDS)
"""Each kind once: `make chaos` is for many more, and `make test-slow` for another order."""
PAUSE_S = 0.2
"""Each fault meets records on their way, of a dozen writers; `make chaos` has no room for more."""


def test_every_kind_of_fault_comes_and_a_seed_repeats_its_faults() -> None:
    count = 2 * len(KINDS)
    drawn = draw(Random(11), count, KINDS)
    assert len(drawn) == count
    assert set(drawn[: len(KINDS)]) == set(drawn[len(KINDS) : 2 * len(KINDS)]) == set(KINDS)
    assert draw(Random(11), count, KINDS) == drawn
    assert draw(Random(12), count, KINDS) != drawn


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.slow)])
def test_a_real_brokers_history_is_as_promised(tmp_path: Path, seed: int, tell: Callable[[str], None]) -> None:
    outcome = run(tmp_path, seed=seed, fault_count=FAULT_COUNT, faults=KINDS, pause_s=PAUSE_S)
    tell(str(outcome))
    assert outcome.findings == [], str(outcome)
    assert sum(outcome.faults.values()) == FAULT_COUNT
    assert set(outcome.faults) == set(KINDS)
    assert outcome.lost_answers >= 100
    assert outcome.acknowledged > 1000
    assert outcome.committed_transactions >= 20
    assert outcome.aborted_transactions >= 1
    assert outcome.reasons == []


@pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")
def test_the_power_cut_does_lose_what_was_acknowledged_from_the_page_cache(tmp_path: Path) -> None:
    settings = {"write_caching": True, "flush_ms": 60_000, "flush_messages": 1_000_000}
    outcome = run(
        tmp_path, seed=13, fault_count=3, faults=["power"], settings=settings, group_timeout_s=5, pause_s=PAUSE_S
    )
    assert any(finding.startswith("lost") for finding in outcome.findings), str(outcome)
