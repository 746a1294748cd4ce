"""What a cluster counts on of etcd: each test runs against the fake of other tests, too."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from etcd_process import EtcdProcess, needs_etcd
from fake_coordination import FakeCoordination
from warmlog_broker.etcd.client import EtcdClient
from warmlog_broker.etcd.coordination import (
    ChangedAt,
    Compacted,
    Coordination,
    CreatedAt,
    Delete,
    Failed,
    LeaseEnded,
    Listing,
    Operation,
    Put,
    Revision,
    Succeeded,
    WentBack,
    prefix_end,
)

PREFIX = "/warmlog/test/"
A, B = PREFIX + "a", PREFIX + "b"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("etcd", marks=needs_etcd)])
async def etcd(request: pytest.FixtureRequest) -> AsyncIterator[Coordination]:
    if request.param == "fake":
        yield FakeCoordination()
        return
    client = EtcdClient(request.getfixturevalue("server").options)
    await client.txn([], [Delete(PREFIX, prefix_end(PREFIX))])
    yield client
    await client.close()


async def put(etcd: Coordination, *operations: Operation) -> int:
    """Returns the revision."""
    outcome = await etcd.txn([], operations)
    assert isinstance(outcome, Succeeded)
    return outcome.revision


async def listing(etcd: Coordination) -> Listing:
    return await etcd.range(PREFIX, prefix_end(PREFIX))


async def values(etcd: Coordination) -> dict[str, bytes]:
    return {item.key: item.value for item in (await listing(etcd)).items}


async def watched(etcd: Coordination, after: int, count: int) -> list[Revision]:
    """The first `count` revisions that changed something."""
    found: list[Revision] = []
    watch = etcd.watch(PREFIX, after)
    async with asyncio.timeout(40):
        async for revision in watch:
            if revision.changes:
                found.append(revision)
            if len(found) == count:
                break
    await watch.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_transaction_changes_all_of_its_keys_at_one_revision(etcd: Coordination) -> None:
    first = await put(etcd, Put(A, b"1"), Put(B, b"2"))
    second = await put(etcd, Put(A, b"3"))
    assert second > first
    found = await listing(etcd)
    assert [(item.key, item.value, item.created, item.changed) for item in found.items] == [
        (A, b"3", first, second),
        (B, b"2", first, first),
    ]
    assert found.revision >= second


async def test_of_two_writers_who_read_the_same_one_wins_and_the_other_sees_what_is_there(etcd: Coordination) -> None:
    revision = await put(etcd, Put(A, b"1"))
    mine = await etcd.txn([ChangedAt(A, revision)], [Put(A, b"mine")], [A])
    theirs = await etcd.txn([ChangedAt(A, revision)], [Put(A, b"theirs"), Put(B, b"theirs")], [A, B])
    assert isinstance(mine, Succeeded)
    assert isinstance(theirs, Failed)
    assert theirs.items[A].value == b"mine"
    assert theirs.items[A].changed == mine.revision
    assert await values(etcd) == {A: b"mine"}


async def test_a_key_is_created_once(etcd: Coordination) -> None:
    assert isinstance(await etcd.txn([ChangedAt(A, 0)], [Put(A, b"1")]), Succeeded)
    assert isinstance(await etcd.txn([ChangedAt(A, 0)], [Put(A, b"2")]), Failed)
    assert isinstance(await etcd.txn([CreatedAt(A, 0)], [Put(A, b"2")]), Failed)


async def test_a_key_that_was_created_again_is_not_the_one_that_was_read(etcd: Coordination) -> None:
    created = await put(etcd, Put(A, b"1"))
    await put(etcd, Put(A, b"2"))
    assert isinstance(await etcd.txn([CreatedAt(A, created)], [Put(B, b"it is")]), Succeeded)
    await put(etcd, Delete(A))
    await put(etcd, Put(A, b"3"))
    assert isinstance(await etcd.txn([CreatedAt(A, created)], [Put(B, b"it is not")]), Failed)


async def test_a_range_of_keys_is_deleted_and_its_neighbours_are_not(etcd: Coordination) -> None:
    await put(etcd, Put(PREFIX + "p/1", b"1"), Put(PREFIX + "p/2", b"2"), Put(PREFIX + "p0", b"3"))
    await put(etcd, Delete(PREFIX + "p/", prefix_end(PREFIX + "p/")), Delete(PREFIX + "never there"))
    assert await values(etcd) == {PREFIX + "p0": b"3"}


async def test_the_range_of_one_key_has_no_longer_ones(etcd: Coordination) -> None:
    await put(etcd, Put(A, b"1"), Put(A + "/1", b"2"))
    assert [item.key for item in (await etcd.range(A)).items] == [A]
    assert (await etcd.range(B)).items == []


async def test_a_watch_yields_each_revision_whole_and_in_order(etcd: Coordination) -> None:
    start = (await listing(etcd)).revision
    first = await put(etcd, Put(A, b"1"), Put(B, b"2"))
    await put(etcd, Put("/warmlog/other/a", b"of another cluster"))
    second = await put(etcd, Delete(A))
    found = await watched(etcd, start, 2)
    assert [revision.revision for revision in found] == [first, second]
    assert {change.key for change in found[0].changes} == {A, B}
    assert [(change.key, change.item) for change in found[1].changes] == [(A, None)]


async def test_a_watch_yields_what_comes_later(etcd: Coordination) -> None:
    start = (await listing(etcd)).revision
    watching = asyncio.create_task(watched(etcd, start, 1))
    await asyncio.sleep(0)
    revision = await put(etcd, Put(A, b"1"))
    assert [each.revision for each in await watching] == [revision]


async def test_a_watch_after_a_revision_that_etcd_never_had_says_that_etcd_went_back(etcd: Coordination) -> None:
    revision = await put(etcd, Put(A, b"1"))
    with pytest.raises(WentBack):
        await watched(etcd, revision + 1000, 1)


async def test_the_keys_of_a_lease_go_with_it(etcd: Coordination) -> None:
    lease = await etcd.grant(60)
    await put(etcd, Put(A, b"leased", lease), Put(B, b"stays"))
    assert await etcd.keep_alive(lease) >= 60
    await etcd.revoke(lease)
    assert await values(etcd) == {B: b"stays"}
    assert await etcd.keep_alive(lease) == 0
    await etcd.revoke(lease)


async def test_a_lease_that_is_not_kept_alive_ends(etcd: Coordination) -> None:
    lease = await etcd.grant(2)
    start = await put(etcd, Put(A, b"leased", lease))
    found = await watched(etcd, start, 1)
    assert [(change.key, change.item) for change in found[0].changes] == [(A, None)]
    assert await etcd.keep_alive(lease) == 0


async def test_a_key_cannot_be_put_with_a_lease_that_has_ended(etcd: Coordination) -> None:
    lease = await etcd.grant(60)
    await etcd.revoke(lease)
    with pytest.raises(LeaseEnded):
        await etcd.txn([], [Put(A, b"1", lease)])


async def test_a_watch_from_a_compacted_revision_says_so_and_one_from_a_later_one_goes_on(
    etcd: Coordination, request: pytest.FixtureRequest
) -> None:
    start = (await listing(etcd)).revision
    await put(etcd, Put(A, b"1"))
    last = await put(etcd, Put(A, b"2"))
    if isinstance(etcd, FakeCoordination):
        etcd.store.compact()
    else:
        request.getfixturevalue("server").compact(last)
    with pytest.raises(Compacted):
        await watched(etcd, start, 1)
    watching = asyncio.create_task(watched(etcd, last, 1))
    revision = await put(etcd, Put(A, b"3"))
    assert [each.revision for each in await watching] == [revision]
    assert await values(etcd) == {A: b"3"}


async def test_a_transaction_without_operations_compares_and_reads(etcd: Coordination) -> None:
    revision = await put(etcd, Put(A, b"1"))
    assert isinstance(await etcd.txn([ChangedAt(A, revision)], []), Succeeded)
    failed = await etcd.txn([ChangedAt(A, 0)], [], [A, B])
    assert isinstance(failed, Failed)
    assert {key: item.value for key, item in failed.items.items()} == {A: b"1"}
    assert (await listing(etcd)).revision == revision, "nothing has changed"
