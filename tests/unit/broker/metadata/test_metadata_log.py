"""The metadata log: written, damaged, read again, written on."""

import errno
import os
from collections.abc import Collection
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from warmlog_broker.metadata import log_file, metadata_log
from warmlog_broker.metadata.topic_names import check_topic_name, colliding_topic
from warmlog_protocol.errors import InvalidTopic, StorageError
from warmlog_protocol.sasl.credential import Credential

CLUSTER = metadata_log.ClusterCreated("c", 1, 1_700_000_000_000)
PATH = Path("metadata.log")
FILE_OF_0_1_0 = (
    "574c4d455441310a0000000e3a09ffd900000000000000089401a16301cf0000018bcfe56800000000255e484d4600000000"
    "000000269602a27431c410010101010101010101010101010101010381a8666c7573682e6d73a1350000000003f97626b000"
    "0000000000005b92060100000025470bf508000000000000006e9602a27432c4100202020202020202020202020202020203"
    "81a8666c7573682e6d73a1350000000003db2585cc00000000000000a3920602"
)
"""A cluster, topic t1, an unclean start, topic t2, another unclean start."""


def topic(number: int, **changes: object) -> metadata_log.TopicCreated:
    values = {"name": f"t{number}", "topic_id": bytes([number]) * 16, "partitions": 3, "settings": {"flush.ms": "5"}}
    return metadata_log.TopicCreated(**{**values, **changes})  # type: ignore[arg-type]


def write(directory: Path, *groups: list[metadata_log.Entry]) -> metadata_log.MetadataState:
    log, _ = log_file.MetadataLog.open(directory)
    for group in groups:
        log.append(group)
        log.flush()
        for entry in group:
            log.state.apply(entry)
    log.close()
    return log.state


def reopen(directory: Path) -> tuple[metadata_log.MetadataState, int]:
    log, cut_bytes = log_file.MetadataLog.open(directory)
    log.close()
    return log.state, cut_bytes


def test_a_new_directory_gets_an_empty_log(tmp_path: Path) -> None:
    state, cut_bytes = reopen(tmp_path)
    assert (vars(state), cut_bytes) == (vars(metadata_log.MetadataState()), 0)
    assert (tmp_path / log_file.FILE_NAME).read_bytes() == log_file.FILE_HEAD


def test_what_was_flushed_is_there_after_opening_again(tmp_path: Path) -> None:
    written = write(tmp_path, [CLUSTER], [topic(1), topic(2)], [metadata_log.TopicDeleted(bytes([1]) * 16, "t1", 3)])
    state, cut_bytes = reopen(tmp_path)
    assert vars(state) == vars(written)
    assert cut_bytes == 0
    assert state.cluster == CLUSTER
    assert list(state.topics) == ["t2"]
    assert state.deleted[bytes([1]) * 16].partitions == 3


def test_entries_add_up() -> None:
    state = metadata_log.MetadataState()
    for entry in (
        CLUSTER,
        topic(1),
        metadata_log.UncleanStart(1),
        topic(2),
        metadata_log.UncleanStart(2),
        metadata_log.ProducerIdsReserved(2000),
    ):
        state.apply(entry)
    state.apply(metadata_log.ProducerIdsReserved(1000))
    assert {name: found.leader_epoch for name, found in state.topics.items()} == {"t1": 2, "t2": 1}
    assert state.next_producer_id == 2000
    state.apply(metadata_log.TopicDeleted(bytes([1]) * 16, "t1", 3))
    state.apply(topic(1, topic_id=bytes(16)))
    assert state.topics["t1"].topic_id == bytes(16)
    state.apply(metadata_log.TopicRemoved(bytes([1]) * 16))
    assert state.deleted == {}


entries = st.one_of(
    st.builds(topic, st.integers(0, 5), leader_epoch=st.integers(0, 3)),
    st.builds(
        lambda number: metadata_log.TopicDeleted(bytes([number]) * 16, f"t{number}", 3),
        st.integers(0, 5),
    ),
    st.builds(lambda number: metadata_log.TopicRemoved(bytes([number]) * 16), st.integers(0, 5)),
    st.builds(metadata_log.ProducerIdsReserved, st.integers(0, 10_000)),
    st.builds(metadata_log.UncleanStart, st.integers(0, 1000)),
    st.builds(
        lambda number, epoch, partitions: metadata_log.LeaderEpochsBegun(
            bytes([number]) * 16, epoch, sorted(partitions)
        ),
        st.integers(0, 5),
        st.integers(0, 9),
        st.sets(st.integers(0, 2), min_size=1),
    ),
    st.builds(
        lambda number, settings: metadata_log.TopicAltered(bytes([number]) * 16, f"t{number}", settings),
        st.integers(0, 5),
        st.dictionaries(st.sampled_from(["flush.ms", "retention.ms"]), st.sampled_from(["1", "2"])),
    ),
    st.builds(
        lambda number, count: metadata_log.PartitionsAdded(bytes([number]) * 16, f"t{number}", count),
        st.integers(0, 5),
        st.integers(1, 5),
    ),
    st.builds(lambda name, time: user(name, changed_ms=time), st.sampled_from("ab"), st.integers(0, 9)),
    st.builds(metadata_log.UserDeleted, st.sampled_from("ab")),
    st.builds(metadata_log.UserSecretMade, st.binary(min_size=1)),
    st.builds(
        metadata_log.QuotaAltered,
        st.sampled_from([None, "a", "*"]),
        st.sampled_from([None, "a", "*"]),
        st.dictionaries(st.sampled_from(["request_rate", "connections"]), st.integers(1, 9)),
    ),
    st.builds(
        lambda number, partitions: metadata_log.PartitionsAssigned(bytes([number]) * 16, bytes(16), sorted(partitions)),
        st.integers(0, 5),
        st.sets(st.integers(0, 4), min_size=1),
    ),
)


def user(name: str, **changes: object) -> metadata_log.UserAltered:
    stored = [Credential("SCRAM-SHA-256", b"salt of a user", 4096, b"k" * 32, b"k" * 32)]
    return structs.replace(metadata_log.UserAltered(name, stored, False, 1), **changes)


def test_users_add_up() -> None:
    state = metadata_log.MetadataState()
    other = user("alice", previous=user("alice").credentials, previous_end_ms=9)
    for entry in (
        metadata_log.UserSecretMade(b"s"),
        user("alice"),
        user("bob"),
        metadata_log.UserDeleted("bob"),
        metadata_log.UserDeleted("eve"),
        other,
    ):
        state.apply(entry)
    assert (state.users, state.user_secret) == ({"alice": other}, b"s")


def test_quotas_add_up() -> None:
    state = metadata_log.MetadataState()
    for entry in (
        metadata_log.QuotaAltered("alice", None, {"request_rate": 1}),
        metadata_log.QuotaAltered(None, "app", {"request_rate": 2}),
        metadata_log.QuotaAltered("alice", None, {"connections": 3}),
        metadata_log.QuotaAltered(None, "app", {}),
        metadata_log.QuotaAltered("eve", None, {}),
    ):
        state.apply(entry)
    assert state.quotas == {("alice", None): {"connections": 3}}


def test_a_log_with_users_is_for_its_owner_only(tmp_path: Path) -> None:
    write(tmp_path, [CLUSTER])
    path = tmp_path / log_file.FILE_NAME
    assert path.stat().st_mode & 0o044 == 0o044 & ~current_umask()
    write(tmp_path, [metadata_log.UserSecretMade(b"s"), user("alice")])
    assert path.stat().st_mode & 0o777 == 0o600
    write(tmp_path, [user("alice", changed_ms=number) for number in range(2 * log_file.HISTORY_RECORDS)])
    before = path.stat().st_ino
    assert list(reopen(tmp_path)[0].users) == ["alice"]
    assert path.stat().st_ino != before, "it was not rewritten"
    assert path.stat().st_mode & 0o777 == 0o600


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_altered_settings_and_added_partitions_are_the_topics_own() -> None:
    state = metadata_log.MetadataState()
    one, other, directory = bytes([1]) * 16, bytes([9]) * 16, bytes([7]) * 16
    for entry in (
        topic(1),
        metadata_log.TopicAltered(one, "t1", {"retention.ms": "1"}),
        metadata_log.TopicAltered(other, "t1", {"retention.ms": "2"}),
        metadata_log.PartitionsAdded(other, "t1", 9),
        metadata_log.PartitionsAdded(one, "t1", 5),
        metadata_log.PartitionsAssigned(one, directory, [0, 1, 2, 3, 4]),
        metadata_log.LeaderEpochsBegun(one, 1, [2, 4]),
    ):
        state.apply(entry)
    assert state.topics["t1"] == topic(1, partitions=5, settings={"retention.ms": "1"})
    state.apply(metadata_log.PartitionsAdded(one, "t1", 3))
    assert state.topics["t1"].partitions == 3
    assert state.assignments == {one: dict.fromkeys(range(3), directory)}
    assert state.leader_epochs == {one: {2: 1}}


@given(st.lists(entries, max_size=20))
def test_the_fewest_entries_say_the_same_as_all(history: list[metadata_log.Entry]) -> None:
    state = metadata_log.MetadataState()
    for entry in (CLUSTER, *history):
        state.apply(entry)
    again = metadata_log.MetadataState()
    for entry in log_file.read_records(log_file.pack_file(state.entries()), PATH).entries:
        again.apply(entry)
    assert vars(again) == vars(state)


class EpochModel:
    """The leader epochs of each topic's three partitions, one by one."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[int]] = {}

    def create(self, number: int, epoch: int) -> metadata_log.Entry:
        self.epochs[number] = [epoch] * 3
        return topic(number, leader_epoch=epoch)

    def delete(self, number: int) -> metadata_log.Entry:
        del self.epochs[number]
        return metadata_log.TopicDeleted(bytes([number]) * 16, f"t{number}", 3)

    def raise_all(self) -> metadata_log.Entry:
        self.epochs = {number: [epoch + 1 for epoch in epochs] for number, epochs in self.epochs.items()}
        return metadata_log.UncleanStart(1)

    def raise_some(self, number: int, partitions: Collection[int]) -> list[metadata_log.Entry]:
        epochs = {partition: self.epochs[number][partition] + 1 for partition in partitions}
        for partition, epoch in epochs.items():
            self.epochs[number][partition] = epoch
        return list(metadata_log.leader_epochs_begun(bytes([number]) * 16, epochs))


@given(st.data())
def test_leader_epochs_are_those_of_a_model_also_after_the_file_was_rewritten(data: st.DataObject) -> None:
    model, state, next_number = EpochModel(), metadata_log.MetadataState(), 0
    for _ in range(data.draw(st.integers(0, 20))):
        step = data.draw(st.sampled_from(["create", "raise all", "raise some", "delete", "rewrite"]))
        written: list[metadata_log.Entry] = []
        if step == "create":
            written = [model.create(next_number, data.draw(st.integers(0, 3)))]
            next_number += 1
        elif step == "raise all":
            written = [model.raise_all()]
        elif step == "rewrite":
            written, state = state.entries(), metadata_log.MetadataState()
        elif model.epochs:
            number = data.draw(st.sampled_from(sorted(model.epochs)))
            some = data.draw(st.sets(st.integers(0, 2)))
            written = [model.delete(number)] if step == "delete" else model.raise_some(number, some)
        for entry in log_file.read_records(log_file.pack_file(written), PATH).entries:
            state.apply(entry)
        assert model.epochs == {
            each.topic_id[0]: [state.leader_epoch(each, partition) for partition in range(3)]
            for each in state.topics.values()
        }


def test_a_log_of_before_leader_epochs_were_kept_for_each_partition_raises_all_of_them(tmp_path: Path) -> None:
    """The bytes as 0.1.0 (c56c8c3) wrote them."""
    (tmp_path / log_file.FILE_NAME).write_bytes(bytes.fromhex(FILE_OF_0_1_0))
    log, cut_bytes = log_file.MetadataLog.open(tmp_path)
    topics = log.state.topics
    assert (cut_bytes, list(topics)) == (0, ["t1", "t2"])
    epochs = {
        name: [log.state.leader_epoch(each, partition) for partition in range(3)] for name, each in topics.items()
    }
    assert epochs == {"t1": [2, 2, 2], "t2": [1, 1, 1]}
    log.append([metadata_log.LeaderEpochsBegun(topics["t1"].topic_id, 3, [1])])
    log.flush()
    log.close()
    state, _ = reopen(tmp_path)
    assert [state.leader_epoch(topics["t1"], partition) for partition in range(3)] == [2, 3, 2]
    assert [state.leader_epoch(topics["t2"], partition) for partition in range(3)] == [1, 1, 1]


def test_a_tail_that_was_torn_at_any_byte_is_cut_and_kept(tmp_path: Path) -> None:
    write(tmp_path, [CLUSTER], [topic(1)])
    path = tmp_path / log_file.FILE_NAME
    before = path.read_bytes()
    write(tmp_path, [topic(2)])
    after = path.read_bytes()
    for size in range(len(before), len(after)):
        path.write_bytes(after[:size])
        state, cut_bytes = reopen(tmp_path)
        assert list(state.topics) == ["t1"]
        assert cut_bytes == size - len(before)
        assert path.read_bytes() == before
        if cut_bytes:
            assert (tmp_path / log_file.CUT_FILE_NAME).read_bytes() == after[len(before) : size]
    write(tmp_path, [topic(3)])
    assert list(reopen(tmp_path)[0].topics) == ["t1", "t3"]


@pytest.mark.parametrize("tail", [bytes(100), b"\xff" * 100, os.urandom(300)])
def test_a_tail_of_zeros_or_garbage_is_cut(tmp_path: Path, tail: bytes) -> None:
    write(tmp_path, [CLUSTER], [topic(1)])
    path = tmp_path / log_file.FILE_NAME
    before = path.read_bytes()
    path.write_bytes(before + tail)
    state, cut_bytes = reopen(tmp_path)
    assert list(state.topics) == ["t1"]
    assert cut_bytes == len(tail)
    assert path.read_bytes() == before


def test_any_bit_that_flips_before_flushed_records_is_refused_with_its_position(tmp_path: Path) -> None:
    write(tmp_path, [CLUSTER], [topic(1)])
    path = tmp_path / log_file.FILE_NAME
    size_bytes = path.stat().st_size
    write(tmp_path, [topic(2)])
    good = path.read_bytes()
    for position in range(len(log_file.FILE_HEAD), size_bytes):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"damaged at position \d+"):
            log_file.MetadataLog.open(tmp_path)
        assert path.read_bytes() == damaged


def test_a_group_that_reached_the_disk_in_pieces_is_a_torn_tail() -> None:
    flushed = log_file.pack_file([CLUSTER, topic(1)])
    lost = bytes(len(log_file.pack_record(topic(2), len(flushed))))
    loaded = log_file.read_records(flushed + lost + log_file.pack_record(topic(3), len(flushed)), PATH)
    assert loaded.entries == [CLUSTER, topic(1)]
    assert loaded.valid_bytes == len(flushed)


def test_damage_in_a_rewritten_file_is_refused() -> None:
    data = bytearray(log_file.pack_file([CLUSTER, topic(1), topic(2)]))
    data[len(log_file.FILE_HEAD) + 20] ^= 1
    with pytest.raises(StorageError, match="damaged at position 8"):
        log_file.read_records(bytes(data), PATH)


def test_a_file_of_another_kind_is_refused() -> None:
    with pytest.raises(StorageError, match="expected"):
        log_file.read_records(b"something else", PATH)


def test_a_file_of_a_newer_version_is_refused_naming_both_versions() -> None:
    with pytest.raises(StorageError, match=r"WLMETA2.*WLMETA1.*newer warmlog.*nothing was changed"):
        log_file.read_records(b"WLMETA2\n" + bytes(100), PATH)


def test_an_entry_of_a_newer_version_is_refused() -> None:
    record = bytearray(log_file.pack_record(metadata_log.UncleanStart(1), 0))
    newer = log_file.pack_file([CLUSTER])
    body = bytes(record[16:]).replace(b"\x92\x06", b"\x92\x7f")

    crc = crc32c(bytes(record[:4]) + bytes(record[8:16]) + body)
    record[4:8] = crc.to_bytes(4, "big")
    with pytest.raises(StorageError, match="does not know"):
        log_file.read_records(newer + bytes(record[:16]) + body, PATH)


def test_a_long_history_is_rewritten_at_start(tmp_path: Path) -> None:
    count = log_file.HISTORY_RECORDS + 20
    written = write(
        tmp_path, [CLUSTER, topic(1)], [metadata_log.ProducerIdsReserved(number) for number in range(count)]
    )
    size_bytes = (tmp_path / log_file.FILE_NAME).stat().st_size
    assert vars(reopen(tmp_path)[0]) == vars(written)
    assert (tmp_path / log_file.FILE_NAME).stat().st_size < size_bytes / 10
    write(tmp_path, [topic(2)])
    assert list(reopen(tmp_path)[0].topics) == ["t1", "t2"]


def test_a_flush_that_failed_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = log_file.MetadataLog.open(tmp_path)
    log.append([CLUSTER])

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageError, match="the disk is broken"):
            log.flush()
    with pytest.raises(StorageError, match="until a restart"):
        log.flush()
    with pytest.raises(StorageError, match="until a restart"):
        log.append([topic(1)])
    log.close()


def test_a_write_that_failed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [CLUSTER])
    log, _ = log_file.MetadataLog.open(tmp_path)
    real = os.pwrite

    def write_half(descriptor: int, data: memoryview, position: int) -> int:
        if len(data) > 20:
            return real(descriptor, data[:20], position)
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_half)
        with pytest.raises(StorageError, match="no space left"):
            log.append([topic(1, topic_id=UUID(int=7).bytes)])
    log.append([topic(2)])
    log.flush()
    log.close()
    assert list(reopen(tmp_path)[0].topics) == ["t2"]


@pytest.mark.parametrize("name", ["a", "flights", "a.b_c-D9", "...", "a" * 249, "x-delete", "-", "_"])
def test_a_legal_name_passes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n", "a\0", "../x", "a:b"])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_the_message_of_a_very_long_name_is_short() -> None:
    with pytest.raises(InvalidTopic) as caught:
        check_topic_name("x" * 100_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "existing", "expected"),
    [
        ("a.b", ["a_b"], "a_b"),
        ("a_b", ["x", "a.b"], "a.b"),
        ("a.b_c", ["a_b.c"], "a_b.c"),
        ("a.b", ["a.b"], None),
        ("a.b", ["ab", "a-b"], None),
        ("ab", ["a.b"], None),
    ],
)
def test_names_that_differ_in_dot_and_underscore_alone_collide(
    name: str, existing: list[str], expected: str | None
) -> None:
    assert colliding_topic(name, existing) == expected
