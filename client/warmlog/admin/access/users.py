"""The part of the admin client for users."""

from datetime import datetime
from secrets import token_urlsafe

from msgspec import Struct

from warmlog.admin.access.user_changes import creation, deletion, rotation
from warmlog.admin.arguments import checked_count
from warmlog.admin.connected import Connected
from warmlog.errors import ResourceNotFound
from warmlog.texts import checked_text
from warmlog.times import datetime_of
from warmlog_protocol import messages as m
from warmlog_transport.responses import checked

TOKEN_BYTES = 32
GRACE_MS = 86_400_000
"""A day: time to give the new password to each client."""


class UserDescription(Struct, frozen=True):
    """A user. `previous_until` is until when the password before the present one is valid; None if it is not."""

    name: str
    is_token: bool
    mechanisms: list[str]
    changed: datetime
    previous_until: datetime | None


class UserAdmin(Connected):
    """Manages users. A password never leaves the client: the broker gets keys from which it cannot be computed."""

    async def create_user(self, name: str, password: str) -> None:
        """Create a user, who can authenticate as soon as this returns. Durable on return.

        Raises DuplicateResource if it exists, UnacceptableCredential if name or password are not allowed, TypeError.
        """
        await self._alter_user(creation(checked_text(name, "name"), _checked_password(password)))

    async def create_token(self, name: str) -> str:
        """Create a user for a machine, and return its password, a random secret that is shown nowhere again."""
        secret = token_urlsafe(TOKEN_BYTES)
        await self._alter_user(creation(checked_text(name, "name"), secret, is_token=True))
        return secret

    async def rotate_user(self, name: str, password: str, *, grace_ms: int = GRACE_MS) -> None:
        """Give a user another password. Both are valid for `grace_ms`, after which the old one is not.

        With 0 the old one is invalid at once; connections end with their session. Raises ResourceNotFound if there is
        no such user, UnacceptableCredential, TypeError.
        """
        checked_text(name, "name")
        found = [user for user in await self._listed_users() if user.name == name]
        if not found:
            raise ResourceNotFound(f"there is no user {name!r}")
        await self._alter_user(rotation(found[0], _checked_password(password), checked_count(grace_ms, "grace_ms")))

    async def rotate_token(self, name: str, *, grace_ms: int = GRACE_MS) -> str:
        """As `rotate_user`, with a new random secret, which is returned."""
        secret = token_urlsafe(TOKEN_BYTES)
        await self.rotate_user(name, secret, grace_ms=grace_ms)
        return secret

    async def delete_user(self, name: str) -> None:
        """Delete a user, whose connections end. Durable on return. Raises ResourceNotFound if there is none."""
        await self._alter_user(deletion(checked_text(name, "name")))

    async def list_users(self) -> list[UserDescription]:
        """All users, sorted by name."""
        return [
            UserDescription(
                user.name,
                user.is_token,
                [each.mechanism for each in user.credentials],
                datetime_of(user.changed_ms),
                None if user.previous_end_ms < 0 else datetime_of(user.previous_end_ms),
            )
            for user in await self._listed_users()
        ]

    async def _listed_users(self) -> list[m.ListedUser]:
        return (await self.cluster.call(m.ListUsersRequest(), m.ListUsersResponse)).users

    async def _alter_user(self, change: m.AlteredUser) -> None:
        response = await self.cluster.call(m.AlterUsersRequest([change]), m.AlterUsersResponse, is_repeatable=False)
        checked(*response.users)


def _checked_password(password: str) -> str:
    if not isinstance(password, str):
        raise TypeError(f"password must be a str, not a {type(password).__name__}")
    return password
