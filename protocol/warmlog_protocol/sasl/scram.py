"""The exchange of SCRAM (RFC 5802, RFC 7677), both sides of it, without I/O.

::

    client-first  := "n,," "n=" name ",r=" client nonce                       name: "=" as =3D, "," as =2C
    server-first  := "r=" client nonce, server nonce ",s=" salt ",i=" iterations
    client-final  := "c=" "n,,", ",r=" both nonces ",p=" proof                salt, c, p and v in base64
    server-final  := "v=" signature

The proof is ClientKey XOR HMAC(StoredKey, all messages before it), and the signature HMAC(ServerKey, the same). The
server's nonce is new in each exchange, so a message that is sent again proves nothing. There is no channel binding.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from secrets import token_urlsafe

from warmlog_protocol.sasl.credential import MAX_ITERATIONS, MAX_SALT_BYTES, MECHANISMS, MIN_ITERATIONS, Credential
from warmlog_protocol.sasl.derivation import derive_keys, prepared

NONCE_BYTES = 24
MAX_MESSAGE_BYTES = 4096
"""A name has at most 255 characters; the rest takes some hundred bytes."""

Find = Callable[[str], Sequence[Credential]]
"""Return the credentials of a user, at least one: all with the same salt and number of iterations."""


class ScramError(Exception):
    """The exchange failed; the message is for the side that found it, and has no secret."""


class ClientExchange:
    """The client's side of one exchange."""

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str = "") -> None:
        """`nonce` is for tests. ValueError if name or password cannot be prepared."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or token_urlsafe(NONCE_BYTES)
        name = prepared(username).replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the client-first message."""
        return f"n,,{self._first}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client-final message. ScramError if the server's message is wrong or asks for too little."""
        text = _text(server_first)
        nonce, encoded_salt, iterations = _values(text, "r", "s", "i")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server did not add to the nonce")
        if (
            not (iterations.isascii() and iterations.isdigit())
            or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS
        ):
            raise ScramError(f"{iterations[:20]!r} iterations, {MIN_ITERATIONS} to {MAX_ITERATIONS} were expected")
        salt = _decoded(encoded_salt)
        if len(salt) > MAX_SALT_BYTES:
            raise ScramError(f"a salt of {len(salt)} bytes, at most {MAX_SALT_BYTES} were expected")
        keys = derive_keys(self._mechanism, self._password, salt, int(iterations))
        without_proof = f"c={_encoded(b'n,,')},r={nonce}"
        message = f"{self._first},{text},{without_proof}".encode()
        name = MECHANISMS[self._mechanism]
        self._signature = hmac.digest(keys.server, message, name)
        proof = _xor(keys.client, hmac.digest(keys.stored, message, name))
        return f"{without_proof},p={_encoded(proof)}".encode()

    def finish(self, server_final: bytes) -> None:
        """Return if the server has proved that it knows the password's keys, else raise ScramError."""
        (signature,) = _values(_text(server_final), "v")
        if not self._signature or not hmac.compare_digest(_decoded(signature), self._signature):
            raise ScramError("the server could not prove that it knows the user: it may be another one")


class ServerExchange:
    """The server's side of one exchange."""

    def __init__(self, mechanism: str, find: Find, *, nonce: str = "") -> None:
        """`nonce` is for tests."""
        self.username = ""
        """As in the client-first message."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce or token_urlsafe(NONCE_BYTES)
        self._binding = b""
        self._messages = ""

    def first(self, client_first: bytes) -> bytes:
        """Return the server-first message. ScramError if the client's is malformed."""
        text = _text(client_first)
        flag, authorization, bare = (*text.split(",", 2), "", "")[:3]
        if flag not in ("n", "y") or authorization:
            raise ScramError("a channel binding or another user to act for, which are not supported")
        name, nonce = _values(bare, "n", "r")
        if name.count("=") != name.count("=3D") + name.count("=2C"):
            raise ScramError("a name with a wrong escape")
        self.username = name.replace("=2C", ",").replace("=3D", "=")
        self._binding = f"{flag},,".encode()
        self._nonce = nonce + self._nonce
        credential = self._find(self.username)[0]
        server_first = f"r={self._nonce},s={_encoded(credential.salt)},i={credential.iterations}"
        self._messages = f"{bare},{server_first}"
        return server_first.encode()

    def final(self, client_final: bytes) -> bytes:
        """Return the server-final message. ScramError unless the client has proved that it knows the password."""
        without_proof, _, proof = _text(client_final).rpartition(",p=")
        binding, nonce = _values(without_proof, "c", "r")
        if _decoded(binding) != self._binding or not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise ScramError("the message belongs to another exchange")
        message = f"{self._messages},{without_proof}".encode()
        name = MECHANISMS[self._mechanism]
        fitting = [each for each in self._find(self.username) if _fits(each, _decoded(proof), message, name)]
        if not fitting:
            raise ScramError("the password is wrong")
        return f"v={_encoded(hmac.digest(fitting[0].server_key, message, name))}".encode()


def _fits(credential: Credential, proof: bytes, message: bytes, name: str) -> bool:
    signature = hmac.digest(credential.stored_key, message, name)
    if len(proof) != len(signature):
        return False
    client_key = _xor(proof, signature)
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        raise ScramError(f"a message of {len(message)} bytes, at most {MAX_MESSAGE_BYTES} were expected")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is not UTF-8") from None


def _values(text: str, *names: str) -> list[str]:
    """Return the values of the attributes `names`, with which `text` begins; others may follow (RFC 5802, 5.1)."""
    parts = text.split(",")
    if len(parts) < len(names) or not all(
        part.startswith(f"{name}=") and len(part) > 2 for part, name in zip(parts, names, strict=False)
    ):
        raise ScramError(f"a message without the attributes {', '.join(names)}")
    return [part[2:] for part in parts[: len(names)]]


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramError("a value that is not base64") from None


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
