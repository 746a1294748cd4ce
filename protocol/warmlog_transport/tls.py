"""TLS of a client's connections: the context that its options describe, and what a failed handshake means."""

import ssl

from warmlog_protocol.errors import InvalidConfig

_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_ISSUER = frozenset({18, 19, 20, 21})
_WRONG_NAME = frozenset({62, 64})
"""Why OpenSSL refuses a certificate: https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/"""

_NO_TLS = "the broker does not speak TLS at this port: leave ssl out, or take the port of a listener with TLS"
_REASONS = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": "the broker offers only versions of TLS below 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the broker accepts none of the client's versions of TLS: 1.2 or later is needed",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a client certificate: give one with ssl_certfile",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not trust the issuer of ssl_certfile",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "ssl_certfile has expired",
}
"""What an error of OpenSSL means, by its name."""


_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError, ConnectionAbortedError)


def make_context(*, cafile: str, certfile: str, keyfile: str, password: str, checks_hostname: bool) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later. Raises InvalidConfig, with the option, if a file cannot be used.

    Without `cafile` the issuers that the system trusts are trusted.
    """
    for option, path in (("ssl_cafile", cafile), ("ssl_certfile", certfile), ("ssl_keyfile", keyfile)):
        try:
            if path:
                with open(path, "rb") as file:
                    file.read()
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"{option}={path!r} cannot be read: {error}") from None
    try:
        context = ssl.create_default_context(cafile=cafile or None)
    except ssl.SSLError as error:
        raise InvalidConfig(f"ssl_cafile={cafile!r}: certificates as PEM expected: {error.reason or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    context.check_hostname = checks_hostname
    if certfile:
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certfile, keyfile or None, password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise InvalidConfig(
                f"ssl_certfile={certfile!r} with the key in {keyfile or certfile!r}: a certificate and its private key "
                f"as PEM expected, with ssl_keypassword if the key is encrypted: {reason}"
            ) from None
    return context


def why_tls_failed(error: OSError) -> str | None:
    """Return why a handshake failed, as part of a message; None if `error` is not one of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_refused(error)
    if isinstance(error, _ENDED):
        return (
            "the broker ended the TLS handshake: does it speak TLS at this port, and does it require another client "
            "certificate (ssl_certfile)? Its log says why"
        )
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "") or (error.reason or str(error)).replace("_", " ").lower()
    return None


def _why_refused(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "the broker's certificate has expired: the broker needs a new one"
    if error.verify_code == _NOT_YET_VALID:
        return "the broker's certificate is not valid yet: is the clock right, here and where it was issued?"
    if error.verify_code in _UNKNOWN_ISSUER:
        return "the broker's certificate is of an unknown issuer: give the issuer's certificate with ssl_cafile"
    message = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_NAME:
        return f"{message}: connect by a name in its certificate, or leave it unchecked with ssl_check_hostname=False"
    return f"the broker's certificate was refused: {message}"


def lost_early(reason: object, *, uses_tls: bool) -> str:
    """Return why a connection has ended before the broker's first response."""
    asked = "require another client certificate (ssl_certfile)" if uses_tls else "expect TLS (ssl=True) at this port"
    return f"{reason}, before its first response: does it {asked}? Its log says why"
