"""Passwords into keys and credentials: PBKDF2, HMAC and SASLprep. Imported at the first login: the hashes of
OpenSSL and the tables of Unicode take a while to load."""

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache
from secrets import token_bytes
from typing import NamedTuple

from warmlog_protocol.sasl.credential import DIGEST_BYTES, ITERATIONS, MECHANISMS, SALT_BYTES, Credential

CACHED_KEYS = 64


class Keys(NamedTuple):
    """What a client needs of a password for one salt and number of iterations."""

    client: bytes
    stored: bytes
    server: bytes

    def __repr__(self) -> str:
        return "Keys(…)"


@lru_cache(CACHED_KEYS)
def derive_keys(mechanism: str, password: str, salt: bytes, iterations: int) -> Keys:
    """Return the keys of `password`, kept for further connections: PBKDF2 takes milliseconds. ValueError as `prepared`.

    https://www.rfc-editor.org/rfc/rfc5802#section-3
    """
    return keys_of(mechanism, hashlib.pbkdf2_hmac(MECHANISMS[mechanism], prepared(password).encode(), salt, iterations))


def keys_of(mechanism: str, salted: bytes) -> Keys:
    name = MECHANISMS[mechanism]
    client = hmac.digest(salted, b"Client Key", name)
    return Keys(client, hashlib.new(name, client).digest(), hmac.digest(salted, b"Server Key", name))


def is_password_of(credential: Credential, password: str) -> bool:
    """Return whether `password` is the one that was stored, in milliseconds: call it in a thread.

    Nothing of the password is kept.
    """
    try:  # without the cache
        keys = derive_keys.__wrapped__(credential.mechanism, password, credential.salt, credential.iterations)
    except ValueError:
        return False
    return hmac.compare_digest(keys.stored, credential.stored_key)


def make_credential(
    mechanism: str, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS
) -> Credential:
    """Return what is stored of `password`, with a new salt unless one is given. ValueError as `prepared`."""
    salt = token_bytes(SALT_BYTES) if salt is None else salt
    keys = derive_keys(mechanism, password, salt, iterations)
    return Credential(mechanism, salt, iterations, keys.stored, keys.server)


def stand_in(mechanism: str, username: str, secret: bytes) -> Credential:
    """Return a credential for a user that does not exist, which no password fits.

    It is always the same for one `username` and `secret`, so that its salt does not tell that there is no such user.
    """

    def made(of: str, size: int) -> bytes:
        text = f"{of} {mechanism} {username}".encode()
        return hmac.digest(secret, text, MECHANISMS[mechanism])[:size]

    size = DIGEST_BYTES[mechanism]
    return Credential(mechanism, made("salt", SALT_BYTES), ITERATIONS, made("stored", size), made("server", size))


def prepared(text: str) -> str:
    """Return a user's name or password as it is compared: SASLprep, RFC 4013. ValueError, without the text, if it is
    empty or has characters that SASLprep prohibits. Characters that are newer than Unicode 3.2 are allowed."""
    import stringprep  # with its tables, which a client that does not log in need not load
    import unicodedata

    kept = "".join(" " if stringprep.in_table_c12(each) else each for each in text if not stringprep.in_table_b1(each))
    normalized = unicodedata.ucd_3_2_0.normalize("NFKC", kept)
    if not normalized:
        raise ValueError("it is empty")
    tables = ("c12", "c21_c22", "c3", "c4", "c5", "c6", "c7", "c8", "c9")
    is_in: list[Callable[[str], bool]] = [getattr(stringprep, f"in_table_{name}") for name in tables]
    if any(is_prohibited(each) for each in normalized for is_prohibited in is_in):
        raise ValueError("it has a control character, or another one that SASLprep (RFC 4013) prohibits")
    if any(map(stringprep.in_table_d1, normalized)) and (
        any(map(stringprep.in_table_d2, normalized))
        or not (stringprep.in_table_d1(normalized[0]) and stringprep.in_table_d1(normalized[-1]))
    ):
        raise ValueError("it mixes writing directions in a way that SASLprep (RFC 4013) prohibits")
    return normalized
