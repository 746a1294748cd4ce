"""Authentication of a connection, and the users that may authenticate."""

from enum import IntEnum

from msgspec import field

from warmlog_protocol.messages.base import Int64, Message, NamedResult
from warmlog_protocol.sasl.credential import Credential


class AuthenticateRequest(Message, frozen=True):
    """One message of a SASL exchange, after the Handshake. `mechanism` is one of those that the Handshake named.

    It is sent again on a connection that is authenticated to begin its next session, by the same user. Its text shows
    no message.
    """

    mechanism: str
    data: bytes

    def __repr__(self) -> str:
        return f"AuthenticateRequest({self.mechanism!r}, …)"


class AuthenticateResponse(Message, frozen=True):
    """The broker's message. With `done` the connection is authenticated, for `session_lifetime_ms`; 0: for ever.

    `throttle_ms` is how long the broker does not read it, as its user has exceeded a quota on other connections.
    """

    data: bytes
    done: bool
    session_lifetime_ms: int = 0
    throttle_ms: int = 0

    def __repr__(self) -> str:
        return f"AuthenticateResponse(…, done={self.done})"


class UserChange(IntEnum):
    """What is changed of a user."""

    CREATE = 0
    ROTATE = 1
    DELETE = 2


class AlteredUser(Message, frozen=True):
    """One user and its change: 0 create, 1 rotate (a new password), 2 delete.

    A user that is created or rotated has a credential for each mechanism. After a rotation the old password stays
    valid for `grace_ms`, if the new credentials have its salt and number of iterations. `is_token`: the password is a
    random secret for a machine.
    """

    name: str
    change: int
    credentials: list[Credential] = field(default_factory=list)
    is_token: bool = False
    grace_ms: Int64 = 0


class AlterUsersRequest(Message, frozen=True):
    """Create users, give them new passwords, or delete them: each independently, durable on response."""

    users: list[AlteredUser]


class AlterUsersResponse(Message, frozen=True):
    """The results, in the order of the request."""

    users: list[NamedResult]


class ListUsersRequest(Message, frozen=True):
    """Which users are there?"""


class ListedCredential(Message, frozen=True):
    """A credential without its keys. Salt and number of iterations are told to each client that authenticates."""

    mechanism: str
    salt: bytes
    iterations: int


class ListedUser(Message, frozen=True):
    """One user. The password before the present one is valid until `previous_end_ms`; -1 if there is none."""

    name: str
    is_token: bool
    changed_ms: int
    previous_end_ms: int
    credentials: list[ListedCredential]


class ListUsersResponse(Message, frozen=True):
    """All users, by name."""

    users: list[ListedUser]
