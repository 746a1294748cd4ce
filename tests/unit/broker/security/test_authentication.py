"""The state of a connection that authenticates, without sockets and with a clock that the test sets."""

from collections.abc import Callable
from typing import cast

import pytest

from warmlog_broker.security.authentication import (
    Authentication,
    AuthenticationFailed,
    AuthenticationRules,
    SessionExpired,
)
from warmlog_broker.security.users import Users
from warmlog_protocol.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from warmlog_protocol.messages import AuthenticateRequest
from warmlog_protocol.sasl.credential import PLAIN, Credential
from warmlog_protocol.sasl.derivation import make_credential, stand_in
from warmlog_protocol.sasl.scram import ClientExchange

SHA_256 = "SCRAM-SHA-256"


class SomeUsers:
    """Alice and Bob, whose password is their name."""

    def __init__(self) -> None:
        self.names = {"alice", "bob"}
        self.passwords = {"alice": "alice", "bob": "bob"}

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def credentials(self, name: str, mechanism: str) -> list[Credential]:
        if name not in self.names:
            return [stand_in(mechanism, name, b"secret")]
        return [make_credential(mechanism, self.passwords[name], salt=b"s" * 12, iterations=4096)]


class Connection:
    def __init__(self, lifetime_ms: int = 1000) -> None:
        self.now_s = 100.0
        self.users = SomeUsers()
        rules = AuthenticationRules((SHA_256,), lifetime_ms)
        self.state = Authentication(cast("Users", self.users), rules, lambda: self.now_s)

    def log_in(self, name: str, password: str) -> int:
        client = ClientExchange(SHA_256, name, password)
        first = self.state.step(AuthenticateRequest(SHA_256, client.first()))
        assert not first.done
        last = self.state.step(AuthenticateRequest(SHA_256, client.final(first.data)))
        client.finish(last.data)
        assert last.done
        return last.session_lifetime_ms


def test_only_one_handshake_and_the_authentication_are_allowed_before_it() -> None:
    connection = Connection()
    connection.state.check(comes_first=True)
    connection.state.greeted()
    connection.state.check(comes_first=True)
    with pytest.raises(IllegalSaslState):
        connection.state.greeted()
    with pytest.raises(IllegalSaslState):
        connection.state.check(comes_first=False)
    assert connection.log_in("alice", "alice") == 1000
    connection.state.check(comes_first=True)
    connection.state.greeted()
    connection.state.check(comes_first=False)
    assert connection.state.user == "alice"


def test_a_session_ends_and_the_same_user_can_begin_another() -> None:
    connection = Connection()
    connection.log_in("alice", "alice")
    connection.now_s += 0.9
    connection.state.check(comes_first=False)
    connection.log_in("alice", "alice")
    connection.now_s += 0.9
    connection.state.check(comes_first=False)
    connection.now_s += 0.1
    with pytest.raises(SessionExpired, match="alice"):
        connection.state.check(comes_first=False)
    connection.log_in("alice", "alice")
    connection.state.check(comes_first=False)
    with pytest.raises(SaslAuthenticationFailed, match="alice"):
        connection.log_in("bob", "bob")


def test_a_session_without_a_lifetime_does_not_end() -> None:
    connection = Connection(lifetime_ms=0)
    assert connection.log_in("alice", "alice") == 0
    connection.now_s += 1e9
    connection.state.check(comes_first=False)


def test_requests_are_served_while_the_next_session_begins() -> None:
    connection = Connection()
    connection.log_in("alice", "alice")
    connection.state.step(AuthenticateRequest(SHA_256, ClientExchange(SHA_256, "alice", "alice").first()))
    connection.state.check(comes_first=False)


@pytest.mark.parametrize(
    ("name", "password", "told", "user"),
    [("alice", "x", "the password is wrong", "alice"), ("mallory", "x", "there is no such user", "")],
)
def test_a_failure_says_why_to_the_log_and_names_known_users_only(
    name: str, password: str, told: str, user: str
) -> None:
    connection = Connection()
    with pytest.raises(AuthenticationFailed) as found:
        connection.log_in(name, password)
    assert (str(found.value), found.value.user) == (told, user)
    with pytest.raises(IllegalSaslState):
        connection.state.check(comes_first=False)


def test_a_user_that_goes_within_its_exchange_fails() -> None:
    connection = Connection()
    client = ClientExchange(SHA_256, "alice", "alice")
    first = connection.state.step(AuthenticateRequest(SHA_256, client.first()))
    connection.users.names.clear()
    with pytest.raises(AuthenticationFailed, match="no such user"):
        connection.state.step(AuthenticateRequest(SHA_256, client.final(first.data)))


@pytest.mark.parametrize("meanwhile", ["nothing", "deleted", "rotated"])
async def test_a_password_must_still_be_valid_once_it_was_compared(meanwhile: str) -> None:
    connection = Connection()
    rules = AuthenticationRules((PLAIN,), 0)
    state = Authentication(cast("Users", connection.users), rules, lambda: connection.now_s)

    async def in_thread(compare: Callable[[], Credential | None]) -> Credential | None:
        found = compare()
        if meanwhile == "deleted":
            connection.users.names.clear()
        elif meanwhile == "rotated":
            connection.users.passwords["alice"] = "other"
        return found

    if meanwhile == "nothing":
        await state.show_password(b"\0alice\0alice", in_thread)
        assert state.user == "alice"
    else:
        with pytest.raises(AuthenticationFailed):
            await state.show_password(b"\0alice\0alice", in_thread)
        assert state.user == ""


def test_other_mechanisms_are_refused_at_the_beginning_and_within() -> None:
    connection = Connection()
    with pytest.raises(UnsupportedSaslMechanism):
        connection.state.step(AuthenticateRequest("SCRAM-SHA-512", b"n,,n=alice,r=nonce"))
    connection.state.step(AuthenticateRequest(SHA_256, b"n,,n=alice,r=nonce"))
    with pytest.raises(IllegalSaslState):
        connection.state.step(AuthenticateRequest("SCRAM-SHA-512", b"c=biws,r=nonce,p=AAAA"))
    with pytest.raises(AuthenticationFailed):
        connection.state.step(AuthenticateRequest(SHA_256, b"c=biws,r=nonce,p=AAAA"))
