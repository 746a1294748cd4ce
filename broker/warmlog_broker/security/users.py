"""The users, which are facts of the cluster: what may be changed, and which credentials are valid.

A user that authenticates as NAME has the principal `User:NAME`. Passwords never come here: clients derive credentials
from them (protocol `sasl/credential`). After a rotation the previous credentials stay valid for a while; they have the
salt of the new ones, since a client is told one salt before it shows which password it has.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence

from warmlog_broker.metadata.metadata_log import ClusterState, Entry, UserAltered, UserDeleted, UserSecretMade
from warmlog_broker.metadata.store import ClusterStore, Version, retried
from warmlog_broker.metadata.topic_names import shown
from warmlog_protocol import errors
from warmlog_protocol.messages import AlteredUser, ListedCredential, ListedUser, UserChange
from warmlog_protocol.sasl.credential import Credential, why_unacceptable

MAX_USERS = 10_000
"""Each takes half a KiB of memory and of the metadata log."""
MAX_CHANGES = 100
"""In one request: each is a flush of the metadata log."""
MAX_NAME_CHARACTERS = 255
MAX_GRACE_MS = 30 * 86_400_000
SECRET_BYTES = 32
RESERVED_NAMES = frozenset({"ANONYMOUS", "*"})
"""The principal of clients that do not authenticate, and Kafka's name for everyone."""

_log = logging.getLogger(__name__)


def user_entries(state: ClusterState, wanted: AlteredUser, now_ms: int) -> list[Entry]:
    """Return the entries that change a user. ResourceNotFound, DuplicateResource, UnacceptableCredential, or
    InvalidRequest for a wrong change or grace period."""
    name, present = wanted.name, state.users.get(wanted.name)
    if wanted.change not in set(UserChange):
        raise errors.InvalidRequest(f"change {wanted.change} of user {shown(name)}: 0, 1 or 2 was expected")
    if present is None and wanted.change != UserChange.CREATE:
        raise errors.ResourceNotFound(f"there is no user {shown(name)}")
    if wanted.change == UserChange.DELETE:
        return [UserDeleted(name)]
    if present is not None and wanted.change == UserChange.CREATE:
        raise errors.DuplicateResource(f"user {shown(name)} exists: rotate it to give it another password")
    if present is None and len(state.users) >= MAX_USERS:
        raise errors.InvalidRequest(f"there are {MAX_USERS} users, as many as a broker holds")
    _check_name(name)
    mechanisms = [each.mechanism for each in wanted.credentials]
    if not mechanisms or len(set(mechanisms)) != len(mechanisms):
        raise errors.UnacceptableCredential(f"user {shown(wanted.name)} needs one credential for each mechanism")
    for credential in wanted.credentials:
        if reason := why_unacceptable(credential):
            raise errors.UnacceptableCredential(f"user {shown(wanted.name)}: {reason}")
    altered = UserAltered(name, wanted.credentials, wanted.is_token, now_ms)
    if wanted.grace_ms:
        altered = _with_grace(altered, present, wanted.grace_ms)
    return [*([] if state.user_secret else [UserSecretMade(os.urandom(SECRET_BYTES))]), altered]


def _with_grace(altered: UserAltered, present: UserAltered | None, grace_ms: int) -> UserAltered:
    """Return the change with the `present` credentials valid for `grace_ms` more."""
    if present is None or not 0 < grace_ms <= MAX_GRACE_MS:
        raise errors.InvalidRequest(
            f"a grace period of {grace_ms} ms: it is for the previous password of a user that exists, and at most "
            f"{MAX_GRACE_MS} ms"
        )
    salts = {each.mechanism: (each.salt, each.iterations) for each in altered.credentials}
    if any(salts.get(each.mechanism) != (each.salt, each.iterations) for each in present.credentials):
        raise errors.InvalidRequest(
            f"the previous password of user {shown(altered.name)} can only stay valid if the new credentials have its "
            "salts and numbers of iterations: ListUsers has them"
        )
    previous, end_ms = present.credentials, altered.changed_ms + grace_ms
    if altered.credentials == previous:  # the same again, maybe as a response was lost: the older one keeps its time
        previous, end_ms = present.previous, present.previous_end_ms
    return UserAltered(altered.name, altered.credentials, altered.is_token, altered.changed_ms, previous, end_ms)


def _check_name(name: str) -> None:
    from warmlog_protocol.sasl.derivation import prepared  # slow to import

    try:
        is_allowed = prepared(name) == name and name.strip() == name and len(name) <= MAX_NAME_CHARACTERS
    except ValueError:
        is_allowed = False
    if not is_allowed or name in RESERVED_NAMES:
        raise errors.UnacceptableCredential(
            f"a user cannot be called {shown(name)}: a name has 1 to {MAX_NAME_CHARACTERS} characters as SASLprep "
            f"(RFC 4013) leaves them, no space at its ends, and is not {' or '.join(sorted(RESERVED_NAMES))}"
        )


def list_of_users(state: ClusterState, now_ms: int) -> list[ListedUser]:
    return [
        ListedUser(
            user.name,
            user.is_token,
            user.changed_ms,
            user.previous_end_ms if now_ms < user.previous_end_ms else -1,
            [ListedCredential(each.mechanism, each.salt, each.iterations) for each in user.credentials],
        )
        for _, user in sorted(state.users.items())
    ]


class Users:
    def __init__(self, store: ClusterStore, now_ms: Callable[[], int]) -> None:
        self.on_deleted: list[Callable[[str], None]] = []
        """Called with the name of each user that was deleted."""
        self._store = store
        self._now_ms = now_ms
        self._known = set(store.state.users)
        self._secret = os.urandom(SECRET_BYTES)
        """As long as there are no users."""

    def __contains__(self, name: object) -> bool:
        return name in self._store.state.users

    def credentials(self, name: str, mechanism: str) -> list[Credential]:
        """Return the valid credentials of a user, at least one: for an unknown user one that no password fits."""
        from warmlog_protocol.sasl.derivation import stand_in  # slow to import

        state = self._store.state
        user = state.users.get(name)
        stored = [] if user is None else list(user.credentials)
        if user is not None and self._now_ms() < user.previous_end_ms:
            stored += user.previous
        found = [each for each in stored if each.mechanism == mechanism]
        # Made also if it is not used: an unknown user takes no other time.
        made = stand_in(mechanism, name, state.user_secret or self._secret)
        return found or [made]

    def listed(self) -> list[ListedUser]:
        return list_of_users(self._store.state, self._now_ms())

    async def alter(self, wanted: AlteredUser, by: str) -> None:
        """Change one user durably. Raises as `user_entries`; `by` is the principal, for the log."""

        async def attempt(version: Version) -> None:
            await self._store.commit(user_entries(self._store.state, wanted, self._now_ms()), expected=version)

        await retried(self._store, attempt)
        _log.info("user %r was changed by %s: %s", wanted.name, by, UserChange(wanted.change).name.lower())
        self.dismiss_deleted()

    def dismiss_deleted(self) -> None:
        """Tell of users that the store has no more, which another broker may have deleted."""
        known, self._known = self._known, set(self._store.state.users)
        for name in known - self._known:
            for on_deleted in self.on_deleted:
                on_deleted(name)


def check_altered_users(wanted: Sequence[AlteredUser]) -> None:
    """Raise InvalidRequest if a request to change these users is refused as a whole."""
    if len(wanted) > MAX_CHANGES:
        raise errors.InvalidRequest(f"{len(wanted)} users to change in one request, {MAX_CHANGES} are allowed")
    for name, times in Counter(each.name for each in wanted).items():
        if times > 1:
            raise errors.InvalidRequest(f"user {shown(name)} is in the request more than once")
