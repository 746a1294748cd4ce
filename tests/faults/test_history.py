"""Whatever happens to the broker, its history stays as promised; and the checker notices when it does not."""

from pathlib import Path

import pytest

from faults.history.checking import FinalLog, check
from faults.history.notes import Notes, Place, WriterNotes, value_of
from faults.history.run import run
from faults.power.powered import why_not

WRITER = "w"
NAMES = ["t"]


def history(numbers: list[int], *, acknowledged: dict[int, int], is_idempotent: bool = True) -> tuple[Notes, FinalLog]:
    """One writer's history, and a log that holds its records with these numbers."""
    writer = WriterNotes(WRITER, "t", 0, is_idempotent, sent=10, acknowledged=acknowledged)
    return Notes(writers=[writer]), FinalLog(0, [value_of(WRITER, number) for number in numbers])


def findings(notes: Notes, log: FinalLog, names: list[str] = NAMES) -> list[str]:
    return check(notes, {("t", 0): log}, names)


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
    notes.note_read(Place("t", 0, 0), value_of(WRITER, 0))
    assert findings(notes, FinalLog(2, [value_of(WRITER, 2)])) == []


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        pytest.param(11, ["kill", "stop", "pause", "connections"], id="process-and-network"),
        pytest.param(
            12,
            ["power", "sync", "full", "kill"],
            id="disk",
            marks=pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}"),
        ),
    ],
)
def test_a_real_brokers_history_is_as_promised(tmp_path: Path, seed: int, kinds: list[str]) -> None:
    outcome = run(tmp_path, seed=seed, fault_count=12, faults=kinds)
    assert outcome.findings == [], str(outcome)
    assert sum(outcome.faults.values()) == 12
    assert outcome.acknowledged > 1000
    assert outcome.refused == 0


@pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")
def test_the_power_cut_does_lose_what_was_acknowledged_from_the_page_cache(tmp_path: Path) -> None:
    settings = {"write_caching": True, "flush_ms": 60_000, "flush_messages": 1_000_000}
    outcome = run(tmp_path, seed=13, fault_count=3, faults=["power"], settings=settings)
    assert any(finding.startswith("lost") for finding in outcome.findings), str(outcome)
