"""The broker's certificate and what it asks of clients, as a context for new connections; reloaded from its files."""

import logging
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.broker_settings import ClientAuth
from warmlog_protocol.errors import InvalidConfig

_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}

EXPIRES_SOON = timedelta(days=14)

_log = logging.getLogger(__name__)


class Certificate:
    """The context of new connections. A reload affects none that are open."""

    def __init__(self, config: BrokerConfig) -> None:
        """Load the files. Raises InvalidConfig, with the setting and its file, if that is impossible."""
        self._config = config
        self._reloading = threading.Lock()
        """Of two reloads at once, the one that has read older files could end last."""
        self._seen = self._look()
        self.context = load_context(config)
        self.expires_at = self._read_expiry()

    def reload(self) -> None:
        """Load the files again. If that is impossible, the error is logged and nothing changes. Blocks on files."""
        with self._reloading:
            self._load_again()

    def reload_if_changed(self) -> None:
        """Reload if a file is another one than at the last load, or has changed since: also who may read it. Blocks on
        files."""
        with self._reloading:
            if self._look() != self._seen:
                self._load_again()

    def _load_again(self) -> None:
        self._seen = self._look()
        try:
            self.context = load_context(self._config)
        except InvalidConfig as error:
            _log.error("warmlog: the TLS certificate was not reloaded, the old one stays in use: %s", error)
        else:
            self.expires_at = self._read_expiry()
            _log.info("warmlog: reloaded the TLS certificate: %s", self._config.tls_cert_file)

    def _read_expiry(self) -> datetime | None:
        """Return until when clients accept the certificate, None if unknown; log a warning if that is soon or over."""
        path = self._config.tls_cert_file
        try:
            at = read_expiry(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            _log.warning("warmlog: it is unknown when the TLS certificate %s expires: %s", path, error)
            return None
        if at - datetime.now(UTC) < EXPIRES_SOON:
            _log.warning("warmlog: the TLS certificate %s expires at %s, clients refuse it from then on", path, at)
        return at

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Identify the files and their versions; None for one that is missing."""
        config = self._config
        paths = config.tls_cert_file, config.tls_key_file, config.tls_key_password_file, config.tls_ca_file
        return tuple(_version(path) for path in paths if path)


def load_context(config: BrokerConfig) -> ssl.SSLContext:
    """Return a context with the files of `config`, for TLS 1.2 and later. Raises InvalidConfig."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Frames have lengths: a connection that ends without TLS's own farewell is one that was lost.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_IGNORE_UNEXPECTED_EOF
    _load_chain(context, config)
    if config.tls_ca_file:
        try:
            context.load_verify_locations(config.tls_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("tls.ca.file", config.tls_ca_file, error) from None
    context.verify_mode = _VERIFY[ClientAuth(config.tls_client_auth)]
    return context


def read_expiry(content: bytes) -> datetime:
    """Return until when the first certificate in a PEM file is valid. ValueError if there is none."""
    from asn1crypto import pem, x509  # only a broker with TLS pays for the import

    for name, _, der in pem.unarmor(content, multiple=True):
        if name.endswith("CERTIFICATE"):
            not_after: datetime = x509.Certificate.load(der).not_valid_after
            return not_after
    raise ValueError("no certificate is in it")


def _load_chain(context: ssl.SSLContext, config: BrokerConfig) -> None:
    for setting, path in (("tls.cert.file", config.tls_cert_file), ("tls.key.file", config.tls_key_file)):
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            raise _unusable(setting, path, error) from None
    # Without a password OpenSSL would ask for one at the terminal.
    password = _read_password(config.tls_key_password_file) if config.tls_key_password_file else ""
    try:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file or None, password)
    except (OSError, ssl.SSLError, ValueError) as error:
        key = config.tls_key_file or config.tls_cert_file
        raise InvalidConfig(
            f"tls.cert.file: {config.tls_cert_file} with the key in {key} cannot be used: {_words(error)}; "
            "expected are a certificate and its private key as PEM, with tls.key.password.file if the key is encrypted"
        ) from None


def _read_password(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise _unusable("tls.key.password.file", path, error) from None


def _unusable(setting: str, path: str, error: Exception) -> InvalidConfig:
    return InvalidConfig(f"{setting}: {path} cannot be used: {_words(error)}")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else str(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size
