"""What must be true of transactions, whatever happened. Pure: notes and what is there in, findings out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from faults.history.transactional.notes import Outcome, Record, Transaction, TransactionNotes, Views

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def check_transactions(
    notes: TransactionNotes, transfers: Views, copies: Mapping[str, Views]
) -> Iterable[tuple[str, str]]:
    """Yield kind and text of each finding. `copies`: topics that have committed `transfers`, copied with offsets."""
    for name, written in notes.by_writer.items():
        yield from _check_writer(name, written, transfers[COMMITTED])
    yield from _check_strangers(notes, transfers)
    for told in notes.cut_off:
        yield "lost", told
    for isolation, seen in notes.seen.items():
        yield from check_reader(isolation, seen, transfers[isolation])
    for topic, views in {"transfers": transfers, **copies}.items():
        if not set(views[COMMITTED]) <= set(views[UNCOMMITTED]):
            yield "isolation", f"{topic}: committed records that a reader of all records does not get"
    for topic, views in copies.items():
        yield from _check_copies(transfers[COMMITTED], views[COMMITTED], topic)


def _check_writer(name: str, written: Sequence[Transaction], committed: Sequence[Record]) -> Iterable[tuple[str, str]]:
    """A committed transaction is there once, an aborted one is not, any other as a whole or not at all; in order."""
    counts = Counter((record.partition, record.value) for record in committed)
    order = {record: number for number, record in enumerate(dict.fromkeys((r.partition, r.value) for r in committed))}
    for number, transaction in enumerate(written):
        found = [counts[record] for record in transaction.records]
        what = f"transaction {number} of {name}, {transaction.outcome.name}: "
        if any(count > 1 for count in found):
            yield "doubled", f"{what}{sum(count > 1 for count in found)} of its records are there more than once"
        elif transaction.outcome is Outcome.COMMITTED and 0 in found:
            yield "lost commit", f"{what}{found.count(0)} of {len(found)} records are not there"
        elif transaction.outcome is Outcome.ABORTED and any(found):
            yield "aborted", f"{what}{sum(found)} of its records are there"
        elif len(set(found)) > 1:
            yield "torn", f"{what}{found.count(1)} of {len(found)} records are there"
    for partition in {partition for transaction in written for partition, _ in transaction.records}:
        sent = [record for each in written for record in each.records if record[0] == partition and record in order]
        if sent != sorted(sent, key=lambda record: order[record]):
            yield "order", f"{name}: records of partition {partition} are not in the order of sending"


def _check_strangers(notes: TransactionNotes, transfers: Views) -> Iterable[tuple[str, str]]:
    sent = {record for written in notes.by_writer.values() for each in written for record in each.records}
    strangers = [each for each in transfers[UNCOMMITTED] if (each.partition, each.value) not in sent]
    if strangers:
        yield "stranger", f"{len(strangers)} records that no producer has sent, such as {strangers[0]}"


def check_reader(isolation: str, seen: Sequence[Record], there: Sequence[Record]) -> Iterable[tuple[str, str]]:
    """A reader that lived through everything got what is there in the end, once, and nothing else."""
    counts = Counter(seen)
    doubled = [record for record, count in counts.items() if count > 1]
    if doubled:
        yield "doubled", f"a {isolation} reader got {len(doubled)} records twice, such as {doubled[0]}"
    wrong = counts.keys() - set(there)
    if wrong:
        yield "delivered", f"a {isolation} reader got {len(wrong)} records that are not there, such as {min(wrong)}"
    missing = set(there) - counts.keys()
    if missing:
        yield "missing", f"a {isolation} reader did not get {len(missing)} records, such as {min(missing)}"
    for partition in {record.partition for record in seen}:
        offsets = [record.offset for record in seen if record.partition == partition]
        if offsets != sorted(offsets):
            yield "order", f"a {isolation} reader got records of partition {partition} out of order"


def _check_copies(transfers: Sequence[Record], copies: Sequence[Record], topic: str) -> Iterable[tuple[str, str]]:
    """Offsets and output agree: each committed record was copied once."""
    expected, found = Counter(each.value for each in transfers), Counter(each.value for each in copies)
    for kind, difference in (("not copied", expected - found), ("copied too often", found - expected)):
        if difference:
            yield "copies", f"{topic}: {difference.total()} records {kind}, such as {min(difference)!r}"


def check_views_again(name: str, before: Views, after: Views) -> Iterable[tuple[str, str]]:
    """Yield what is not as it was after a restart."""
    for isolation, records in before.items():
        if list(records) != list(after[isolation]):
            yield "reread", f"{name}: a {isolation} reader gets other records after a restart"
