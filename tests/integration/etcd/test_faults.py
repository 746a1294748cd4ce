"""A client of etcd while members die, hang or lose their data, and what an etcd refuses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from certificates import Certificates
from etcd_process import EtcdProcess, needs_etcd
from warmlog_broker.etcd import watching
from warmlog_broker.etcd.client import EtcdClient
from warmlog_broker.etcd.connection import EtcdOptions
from warmlog_broker.etcd.coordination import (
    Outcome,
    Put,
    Refused,
    Revision,
    Succeeded,
    Unavailable,
    Unknown,
    WentBack,
    prefix_end,
)

pytestmark = needs_etcd
PREFIX = "/warmlog/test/"
KEY = PREFIX + "a"


@asynccontextmanager
async def client_of(options: EtcdOptions) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(options)
    try:
        yield client
    finally:
        await client.close()


async def settled(client: EtcdClient, value: bytes) -> Outcome:
    """The outcome of a put that is repeated until it is known."""
    async with asyncio.timeout(40):
        while True:
            outcome = await client.txn([], [Put(KEY, value)])
            if not isinstance(outcome, Unknown):
                return outcome


class Watching:
    """A watch in a task of its own, and what it has found."""

    def __init__(self, client: EtcdClient, after: int) -> None:
        self.found: list[Revision] = []
        self.task = asyncio.create_task(self._watch(client, after))

    async def _watch(self, client: EtcdClient, after: int) -> None:
        async for revision in client.watch(PREFIX, after):
            self.found.append(revision)

    async def has(self, revision: int) -> None:
        async with asyncio.timeout(40):
            while not self.found or self.found[-1].revision < revision:
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.01)


async def revision_of(client: EtcdClient) -> int:
    return (await client.range(KEY)).revision


async def watching_from_a_change(client: EtcdClient) -> Watching:
    """A watch that has told of a first change."""
    watch = Watching(client, await revision_of(client))
    first = await settled(client, b"1")
    assert isinstance(first, Succeeded)
    await watch.has(first.revision)
    return watch


@pytest.mark.parametrize("is_killed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["killed", "stopped"])
async def test_calls_and_watches_go_on_at_another_member(
    is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.3)
    with EtcdProcess(tmp_path, members=3) as etcd:
        async with client_of(etcd.options) as client:
            watch = await watching_from_a_change(client)
            member = etcd.member_at(client.endpoints.current.address)
            member.kill() if is_killed else etcd.stop(member)
            second = await settled(client, b"2")
            assert isinstance(second, Succeeded)
            await watch.has(second.revision)
            values = [change.item.value for each in watch.found for change in each.changes if change.item]
            assert values == sorted(values), "in order"
            assert set(values) == {b"1", b"2"}
            watch.task.cancel()


async def test_a_watch_leaves_a_member_that_is_cut_off_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would answer on, and never hear of a change. Nothing else asks it meanwhile."""
    monkeypatch.setattr(watching, "SILENCE_S", 0.3)
    with EtcdProcess(tmp_path, members=3) as etcd:
        async with client_of(etcd.options) as client:
            watch = await watching_from_a_change(client)
            left = client.endpoints.current
            for member in etcd.members:
                if member.address != left.address:
                    member.kill()
            async with asyncio.timeout(40):
                while client.endpoints.current is left:
                    assert not watch.task.done(), watch.task.exception()
                    await asyncio.sleep(0.01)
            watch.task.cancel()


@pytest.mark.slow
async def test_without_a_majority_outcomes_are_unknown_and_reads_fail(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path, members=3) as etcd:
        async with client_of(etcd.options) as client:
            await settled(client, b"1")
            etcd.members[1].kill()
            etcd.members[2].kill()
            assert isinstance(await client.txn([], [Put(KEY, b"2")]), Unknown)
            with pytest.raises(Unavailable):
                await client.keep_alive(1)
            etcd.start(etcd.members[1], wait=False)
            assert isinstance(await settled(client, b"3"), Succeeded)


async def test_a_listing_of_several_pages_is_of_one_revision(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as etcd:
        async with client_of(etcd.options) as client:
            keys = [f"{PREFIX}{number:05}" for number in range(2500)]
            for at in range(0, len(keys), 100):
                await client.txn([], [Put(key, b"x" * 100) for key in keys[at : at + 100]])
            found = await client.range(PREFIX, prefix_end(PREFIX))
            assert [item.key for item in found.items] == keys
            assert found.revision == await revision_of(client)


async def test_more_history_than_a_message_holds_is_yielded_in_whole_revisions(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as etcd:
        async with client_of(etcd.options) as client:
            start = await revision_of(client)
            for number in range(8):
                last = await client.txn([], [Put(f"{PREFIX}{number}{name}", b"x" * 400_000) for name in "abc"])
            assert isinstance(last, Succeeded)
            watch = Watching(client, start)
            await watch.has(last.revision)
            assert [len(each.changes) for each in watch.found] == [3] * 8
            watch.task.cancel()


async def test_a_watch_over_an_etcd_that_lost_its_data_says_that_it_went_back(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as etcd:
        async with client_of(etcd.options) as client:
            for number in range(5):
                last = await settled(client, b"%d" % number)
            assert isinstance(last, Succeeded)
            watch = Watching(client, last.revision)
            etcd.lose_all()
            with pytest.raises(WentBack, match="restored"):
                await asyncio.wait_for(watch.task, 40)
            with pytest.raises(WentBack):
                await client.range(KEY)
            with pytest.raises(WentBack):
                await settled(client, b"again")


async def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as etcd:
        async with client_of(etcd.options) as client:
            with pytest.raises(Refused, match="too large"):
                await client.txn([], [Put(KEY, b"x" * 2_000_000)])


async def test_with_a_password_calls_go_on_after_all_tokens_were_lost(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as etcd:
        etcd.enable_auth("secret")
        with pytest.raises(Refused):
            async with client_of(etcd.options) as nameless:
                await nameless.range(KEY)
        with pytest.raises(Refused, match="password"):
            async with client_of(replace(etcd.options, user="root", password="wrong")) as wrong:
                await wrong.txn([], [Put(KEY, b"1")])
        async with client_of(replace(etcd.options, user="root", password="secret")) as client:
            watch = Watching(client, await revision_of(client))
            assert isinstance(await settled(client, b"1"), Succeeded)
            lease = await client.grant(60)
            etcd.kill_all()
            etcd.start(etcd.members[0])
            last = await settled(client, b"2")
            assert isinstance(last, Succeeded)
            await watch.has(last.revision)
            assert await client.keep_alive(lease) > 0
            watch.task.cancel()


async def test_over_tls_the_certificate_of_etcd_is_checked(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with EtcdProcess(tmp_path, certificate=certificates.broker, ca=certificates.ca) as etcd:
        async with client_of(etcd.options) as client:
            assert isinstance(await settled(client, b"1"), Succeeded)
        async with client_of(replace(etcd.options, ca=Path(certificates.foreign_ca))) as client:
            assert isinstance(await client.txn([], [Put(KEY, b"2")]), Unknown)
