"""Users: which changes are refused, and which credentials are valid at which time."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from warmlog.admin.access.user_changes import creation, deletion, rotation
from warmlog_broker.metadata.log_file import MetadataLog
from warmlog_broker.metadata.metadata_log import MetadataState, UserAltered, UserSecretMade
from warmlog_broker.metadata.store import LoneClusterStore, NodeStore
from warmlog_broker.security import users as users_module
from warmlog_broker.security.users import Users, check_altered_users, list_of_users, user_entries
from warmlog_protocol.errors import (
    ApiError,
    DuplicateResource,
    InvalidRequest,
    ResourceNotFound,
    UnacceptableCredential,
)
from warmlog_protocol.messages import AlteredUser, UserChange
from warmlog_protocol.sasl.credential import Credential
from warmlog_protocol.sasl.derivation import make_credential
from warmlog_protocol.sasl.scram import ClientExchange, ScramError, ServerExchange

SHA_256 = "SCRAM-SHA-256"


def state_of(*changes: AlteredUser, now_ms: int = 0) -> MetadataState:
    state = MetadataState()
    for change in changes:
        for entry in user_entries(state, change, now_ms):
            state.apply(entry)
    return state


def fits(credentials: Sequence[Credential], password: str) -> bool:
    client = ClientExchange(SHA_256, "alice", password)
    server = ServerExchange(SHA_256, lambda _: credentials)
    try:
        client.finish(server.final(client.final(server.first(client.first()))))
    except ScramError:
        return False
    return True


class OneUser:
    """Users in a metadata log in memory, at a time that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.now_ms = 1_000_000
        self.threads = ThreadPoolExecutor(1)
        self.node = NodeStore(MetadataLog.open(directory)[0], self.threads)
        self.store = LoneClusterStore(self.node)
        self.users = Users(self.store, lambda: self.now_ms)

    async def alter(self, change: AlteredUser) -> None:
        await self.users.alter(change, "User:ANONYMOUS")

    async def close(self) -> None:
        await self.node.close()
        self.threads.shutdown()


async def test_the_old_password_is_valid_until_the_grace_period_ends(tmp_path: Path) -> None:
    one = OneUser(tmp_path)
    await one.alter(creation("alice", "old"))
    await one.alter(rotation(one.users.listed()[0], "new", grace_ms=500))
    (listed,) = one.users.listed()
    assert listed.previous_end_ms == one.now_ms + 500
    assert all(fits(one.users.credentials("alice", SHA_256), password) for password in ("old", "new"))
    one.now_ms += 500
    assert [fits(one.users.credentials("alice", SHA_256), password) for password in ("old", "new")] == [False, True]
    assert one.users.listed()[0].previous_end_ms == -1
    await one.close()


async def test_a_second_rotation_ends_the_first_password(tmp_path: Path) -> None:
    one = OneUser(tmp_path)
    await one.alter(creation("alice", "one"))
    for password in ("two", "three"):
        await one.alter(rotation(one.users.listed()[0], password, grace_ms=500))
    valid = one.users.credentials("alice", SHA_256)
    assert [fits(valid, password) for password in ("one", "two", "three")] == [False, True, True]
    await one.close()


async def test_a_rotation_whose_response_was_lost_may_be_repeated_and_the_old_password_stays(tmp_path: Path) -> None:
    one = OneUser(tmp_path)
    await one.alter(creation("alice", "old"))
    change = rotation(one.users.listed()[0], "new", grace_ms=500)
    await one.alter(change)
    one.now_ms += 100
    await one.alter(change)
    valid = one.users.credentials("alice", SHA_256)
    assert all(fits(valid, password) for password in ("old", "new"))
    assert one.users.listed()[0].previous_end_ms == one.now_ms + 400
    await one.close()


async def test_of_two_that_create_a_user_at_once_one_is_refused(tmp_path: Path) -> None:
    one = OneUser(tmp_path)
    results = await asyncio.gather(
        *(one.alter(creation("alice", password)) for password in ("one", "two")), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), DuplicateResource]
    assert fits(one.users.credentials("alice", SHA_256), "one")
    await one.close()


async def test_who_watches_is_told_of_a_deletion(tmp_path: Path) -> None:
    one, deleted = OneUser(tmp_path), list[str]()
    one.users.on_deleted.append(deleted.append)
    await one.alter(creation("alice", "x"))
    assert ("alice" in one.users, deleted) == (True, [])
    await one.alter(deletion("alice"))
    assert ("alice" in one.users, deleted) == (False, ["alice"])
    await one.close()


async def test_an_unknown_user_has_a_credential_that_stays_the_same_once_there_are_users(tmp_path: Path) -> None:
    one = OneUser(tmp_path)
    await one.alter(creation("alice", "x"))
    made = one.users.credentials("mallory", SHA_256)
    other = Users(one.store, lambda: 0)
    assert made == other.credentials("mallory", SHA_256) != other.credentials("eve", SHA_256)
    await one.close()


def valid(**changes: Any) -> AlteredUser:
    return replace(creation("alice", "x"), **changes)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (valid(change=7), InvalidRequest),
        (valid(change=UserChange.ROTATE), ResourceNotFound),
        (deletion("alice"), ResourceNotFound),
        (valid(grace_ms=1), InvalidRequest),
        (valid(name=""), UnacceptableCredential),
        (valid(name="*"), UnacceptableCredential),
        (valid(name="ANONYMOUS"), UnacceptableCredential),
        (valid(name="a\u00adb"), UnacceptableCredential),
        (valid(name="a" * 256), UnacceptableCredential),
        (valid(credentials=[]), UnacceptableCredential),
        (valid(credentials=[make_credential(SHA_256, "x")] * 2), UnacceptableCredential),
        (valid(credentials=[Credential("PLAIN", b"s" * 12, 4096, b"", b"")]), UnacceptableCredential),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused(change: AlteredUser, kind: type[ApiError]) -> None:
    with pytest.raises(kind):
        user_entries(MetadataState(), change, 0)


@pytest.mark.parametrize("grace_ms", [-1, users_module.MAX_GRACE_MS + 1])
def test_a_grace_period_has_bounds(grace_ms: int) -> None:
    state = state_of(creation("alice", "old"))
    with pytest.raises(InvalidRequest, match="grace period"):
        user_entries(state, rotation(list_of_users(state, 0)[0], "new", grace_ms), 0)


def test_a_rotation_with_a_grace_period_needs_the_same_salts() -> None:
    state = state_of(creation("alice", "old"))
    change = replace(creation("alice", "new"), change=UserChange.ROTATE, grace_ms=1000)
    with pytest.raises(InvalidRequest, match="salts"):
        user_entries(state, change, 0)
    (altered,) = user_entries(state, replace(change, grace_ms=0), 0)
    assert isinstance(altered, UserAltered)
    assert altered.previous == []


def test_there_is_a_bound_on_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "MAX_USERS", 1)
    with pytest.raises(InvalidRequest, match="1 users"):
        state_of(creation("alice", "x"), creation("bob", "x"))


def test_a_request_names_a_user_once_and_not_too_many() -> None:
    check_altered_users([deletion("a"), deletion("b")])
    with pytest.raises(InvalidRequest, match="more than once"):
        check_altered_users([deletion("a"), deletion("a")])
    with pytest.raises(InvalidRequest, match="are allowed"):
        check_altered_users([deletion(str(number)) for number in range(101)])


def test_users_survive_a_rewritten_metadata_log_and_their_secret_is_made_once() -> None:
    state = state_of(creation("alice", "x"), creation("bob", "x"), deletion("bob"), creation("eve", "x"))
    rebuilt = MetadataState()
    entries = state.entries()
    for entry in entries:
        rebuilt.apply(entry)
    assert vars(rebuilt) == vars(state)
    assert sum(isinstance(entry, UserSecretMade) for entry in entries) == 1
    assert len(state.user_secret) == 32
    assert repr(state.user_secret)[2:10] not in repr(state)
    assert repr(state.users["eve"].credentials[0].stored_key)[2:10] not in repr(state)
