"""What a broker stores of a password (RFC 5802, section 3); `derivation` computes it.

::

    SaltedPassword := PBKDF2-HMAC(SASLprep(password), salt, iterations)
    ClientKey      := HMAC(SaltedPassword, "Client Key")        known to clients only
    StoredKey      := H(ClientKey)                              lets the broker verify a client
    ServerKey      := HMAC(SaltedPassword, "Server Key")        lets the client verify the broker

The password cannot be computed from StoredKey and ServerKey, only guessed, each guess at the cost of the iterations.
"""

from msgspec import Struct

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism. Kafka's names (RFC 7677 has the first)."""
PLAIN = "PLAIN"
"""The mechanism that shows the password itself (RFC 4616): for clients of Kafka, and only with TLS."""
DIGEST_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000
"""The least that RFC 7677 allows; the most that a client computes, in half a second, for a server that asks."""
ITERATIONS = 16_384
"""The most that Kafka stores: some 5 ms for each guess at a password, and for the first connection of a client."""
MIN_SALT_BYTES, SALT_BYTES, MAX_SALT_BYTES = 12, 24, 256


class Credential(Struct, array_like=True, frozen=True, gc=False):
    """A password as it is stored, for one mechanism: salt, number of iterations, StoredKey and ServerKey (RFC 5802).

    Its text shows no key.
    """

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential({self.mechanism!r}, iterations={self.iterations}, …)"


def why_unacceptable(credential: Credential) -> str:
    """Return what is wrong with a credential that a client sent; empty if nothing is."""
    if credential.mechanism not in MECHANISMS:
        return f"mechanism {credential.mechanism[:40]!r}: {' or '.join(MECHANISMS)} was expected"
    if not MIN_ITERATIONS <= credential.iterations <= MAX_ITERATIONS:
        return f"{credential.iterations} iterations: {MIN_ITERATIONS} to {MAX_ITERATIONS} were expected"
    if not MIN_SALT_BYTES <= len(credential.salt) <= MAX_SALT_BYTES:
        return f"a salt of {len(credential.salt)} bytes: {MIN_SALT_BYTES} to {MAX_SALT_BYTES} were expected"
    size = DIGEST_BYTES[credential.mechanism]
    if len(credential.stored_key) != size or len(credential.server_key) != size:
        return f"a key that is not {size} bytes long, as those of {credential.mechanism} are"
    return ""
