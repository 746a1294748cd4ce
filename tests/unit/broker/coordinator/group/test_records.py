"""Records of `__groups`: what is written is read again; what a newer version wrote is left alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.coordinator.classic.state import SavedMember, SavedRebalance
from warmlog_broker.coordinator.framework.decision import PartitionId, Record
from warmlog_broker.coordinator.group.decisions import records
from warmlog_broker.coordinator.group.decisions.state import Groups

ENTRIES = [
    (records.GroupKey("g"), records.GroupValue(3, 17)),
    (records.MemberKey("g", "m"), records.MemberValue("i", "c", "h", ("a", "b"), "p.*", "range", 1, 2, ("old",))),
    (records.TargetKey("g"), records.TargetValue(3, "uniform", (records.KnownTopic(b"t" * 16, "t", 4),))),
    (records.ShareKey("g", "m"), records.pack_share({PartitionId(b"t" * 16, 2), PartitionId(b"t" * 16, 1)})),
    (
        records.AssignmentKey("g", "m"),
        records.AssignmentValue(3, 2, ((b"t" * 16, (1, 2), (3, 2)),), ((b"u" * 16, (0,), (1,)),)),
    ),
    (records.OffsetKey("g", b"t" * 16, 1), records.OffsetValue(2**60, 7, "meta", "t", 99)),
    (
        records.ClassicKey("g"),
        SavedRebalance(
            3, "consumer", "range", "m", (SavedMember("m", "i", "c", "h", 1, 2, (("range", b"topics"),), b"\0"),)
        ),
    ),
]
partitions = st.builds(PartitionId, st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))


@pytest.mark.parametrize(("key", "value"), ENTRIES)
def test_what_is_written_is_read_again(key: object, value: object) -> None:
    assert records.read(records.put(key, value)) == (key, value)
    assert records.read(records.remove(key)) == (key, None)


@given(st.dictionaries(partitions, st.integers(0, 2**60)))
def test_partitions_are_packed_and_unpacked(epochs: dict[PartitionId, int]) -> None:
    assert records.unpack_epochs(records.pack_epochs(epochs)) == epochs
    assert records.unpack_share(records.pack_share(epochs)) == epochs.keys()


@pytest.mark.parametrize(("key", "value"), ENTRIES)
def test_new_fields_at_the_end_are_ignored_and_a_new_version_as_a_whole(key: object, value: object) -> None:
    raw = records.put(key, value)
    fields = msgspec.msgpack.decode(raw.value)
    assert records.read(Record(raw.key, msgspec.msgpack.encode([*fields, "new"]))) == (key, value)
    assert records.read(Record(raw.key, msgspec.msgpack.encode([2, "all", "new"]))) is None
    longer_key = msgspec.msgpack.encode([*msgspec.msgpack.decode(raw.key), "new"])
    assert records.read(Record(longer_key, raw.value)) == (key, value)


@pytest.mark.parametrize(
    "key", [b"", b"\xc1", b"text", msgspec.msgpack.encode([7, "g"]), msgspec.msgpack.encode(["g"])]
)
@pytest.mark.parametrize("value", [None, b"", b"\xc1"])
def test_unknown_keys_are_ignored(key: bytes, value: bytes | None) -> None:
    groups = Groups()
    groups.replay(Record(key, value))
    assert groups == Groups()


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\xa1x", msgspec.msgpack.encode([1, "x", 2]), b"\x90"])
def test_a_damaged_value_is_an_error_that_names_the_key(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"GroupKey\(group='g'\) is damaged"):
        Groups().replay(Record(records.put(*ENTRIES[0]).key, value))


@given(st.permutations(ENTRIES))
def test_the_order_of_the_keys_does_not_matter(entries: list[tuple[object, object]]) -> None:
    groups, expected = Groups(), Groups()
    for key, value in entries:
        groups.replay(records.put(key, value))
    for key, value in ENTRIES:
        expected.replay(records.put(key, value))
    assert groups == expected
    for key, _ in reversed(entries):
        groups.replay(records.remove(key))
    assert groups == Groups()
