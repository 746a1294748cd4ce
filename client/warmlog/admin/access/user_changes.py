"""Changes of users, as they are sent: passwords become credentials here, and go no further."""

from warmlog.errors import UnacceptableCredential
from warmlog_protocol.messages import AlteredUser, ListedUser, UserChange
from warmlog_protocol.sasl.credential import MECHANISMS, Credential
from warmlog_protocol.sasl.derivation import make_credential


def creation(name: str, password: str, *, is_token: bool = False) -> AlteredUser:
    """Return the change that creates a user. UnacceptableCredential for a password that cannot be one."""
    return AlteredUser(name, UserChange.CREATE, _credentials(name, password, {}), is_token)


def rotation(user: ListedUser, password: str, grace_ms: int) -> AlteredUser:
    """Return the change that gives a user another password; the present one stays valid for `grace_ms`."""
    kept = {each.mechanism: (each.salt, each.iterations) for each in user.credentials} if grace_ms else {}
    credentials = _credentials(user.name, password, kept)
    return AlteredUser(user.name, UserChange.ROTATE, credentials, user.is_token, grace_ms)


def deletion(name: str) -> AlteredUser:
    """Return the change that deletes a user."""
    return AlteredUser(name, UserChange.DELETE)


def _credentials(name: str, password: str, kept: dict[str, tuple[bytes, int]]) -> list[Credential]:
    """Return a credential for each mechanism, with the salt and number of iterations in `kept` if there are any."""
    try:
        return [
            make_credential(mechanism, password, salt=kept[mechanism][0], iterations=kept[mechanism][1])
            if mechanism in kept
            else make_credential(mechanism, password)
            for mechanism in MECHANISMS
        ]
    except ValueError as error:
        raise UnacceptableCredential(f"the password of user {name!r} is not allowed: {error}") from None
