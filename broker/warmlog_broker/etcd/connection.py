"""The connections to etcd's members: which one is in use, the token of a user, and what gRPC's errors mean."""

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

import grpc
import grpc.aio
from msgspec import Struct

from warmlog_broker.etcd.coordination import LeaseEnded, Refused, Unavailable
from warmlog_broker.etcd.messages import message
from warmlog_protocol.errors import InvalidConfig

ATTEMPT_S = 2.0
"""A call that one endpoint has not answered for so long has failed there."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    # A connection on which nothing arrives any more is found out; etcd allows a ping every five seconds.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_UNARY = ("KV/Range", "KV/Txn", "Lease/LeaseGrant", "Lease/LeaseRevoke", "Auth/Authenticate")
_REFUSALS = frozenset({
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
})  # fmt: skip

_log = logging.getLogger(__name__)


class TokenRefused(Unavailable):
    """The token has expired, or rights were changed since: the next call authenticates again."""


class EtcdOptions(Struct, frozen=True, kw_only=True):
    endpoints: tuple[str, ...]
    """HOST:PORT of each member."""
    user: str = ""
    password: str = ""
    ca: Path | None = None
    """With the certificates of those that sign etcd's: connections are TLS."""
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def given(
        cls,
        addresses: str,
        user: str,
        password_file: str | Path,
        ca_file: str | Path,
        cert_file: str | Path,
        key_file: str | Path,
    ) -> Self:
        """Return what the settings cluster.etcd… mean, each "" if not set. InvalidConfig for an unreadable password."""
        return cls(
            endpoints=tuple(address.strip() for address in addresses.split(",")),
            user=user,
            password=_password_in(Path(password_file)) if password_file else "",
            ca=Path(ca_file) if ca_file else None,
            certificate=Path(cert_file) if cert_file else None,
            key=Path(key_file or cert_file) if cert_file else None,
        )


class Endpoint:
    """One member of etcd: a channel and the methods on it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, _OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, _OPTIONS)
        self.unary = {method: _method(self.channel.unary_unary, method) for method in _UNARY}
        self.watch = _method(self.channel.stream_stream, "Watch/Watch")
        self.keep_alive = _method(self.channel.stream_stream, "Lease/LeaseKeepAlive")


class Endpoints:
    """The members of etcd that are configured, and the token that all of them accept."""

    def __init__(self, options: EtcdOptions) -> None:
        """InvalidConfig if a certificate cannot be read."""
        self._options = options
        credentials = _credentials(options)
        self._all = [Endpoint(address, credentials) for address in options.endpoints]
        self._token = ""
        self._is_silent = False
        """Whether a call has failed, and none was answered since."""
        self.on_call: Callable[[str, float, bool], None] = lambda _call, _seconds, _is_answered: None
        """Called after each call with its name, how long it took, and whether it was answered."""

    @property
    def current(self) -> Endpoint:
        """The one that calls go to now."""
        return self._all[0]

    def use_next(self, failed: Endpoint) -> None:
        """Go to the next endpoint, if `failed` is the one in use."""
        if failed is self.current:
            self._all.append(self._all.pop(0))

    async def close(self) -> None:
        """Close all connections; calls that are under way are cancelled."""
        for endpoint in self._all:
            await endpoint.channel.close()

    async def metadata(self) -> list[tuple[str, str]]:
        """Return what a call is sent with: the token of the user, if there is one. Raises Unavailable, Refused."""
        if not self._options.user:
            return []
        if not self._token:
            request = message("AuthenticateRequest")(name=self._options.user, password=self._options.password)
            self._token = (await self._attempt("Auth/Authenticate", request, [], self.current)).token
        return [("token", self._token)]

    async def call(self, method: str, request: Any, endpoint: Endpoint | None = None) -> Any:
        """Return the response of one endpoint, asked once, or twice if it did not accept the token.

        Raises Unavailable, Refused, LeaseEnded.
        """
        endpoint = endpoint or self.current
        try:
            return await self._attempt(method, request, await self.metadata(), endpoint)
        except TokenRefused:
            return await self._attempt(method, request, await self.metadata(), endpoint)

    async def _attempt(self, method: str, request: Any, metadata: list[tuple[str, str]], endpoint: Endpoint) -> Any:
        began_s, call = time.monotonic(), method.partition("/")[2]
        try:
            response = await endpoint.unary[method](request, metadata=metadata, timeout=ATTEMPT_S)
        except grpc.aio.AioRpcError as error:
            self.on_call(call, time.monotonic() - began_s, False)
            self.failed(endpoint, error)
        self.on_call(call, time.monotonic() - began_s, True)
        self._is_silent = False
        return response

    def failed(self, endpoint: Endpoint, error: grpc.aio.AioRpcError) -> NoReturn:
        """Raise what an error of gRPC means. Calls go to the next endpoint if this one did not answer."""
        code, said = error.code(), f"etcd at {endpoint.address}: {error.details()} ({error.code().name})"
        if code is grpc.StatusCode.NOT_FOUND:
            raise LeaseEnded(said) from None
        if code is grpc.StatusCode.UNAUTHENTICATED or "revision in header is old" in said:
            self._token = ""
            raise TokenRefused(said) from None
        if code in _REFUSALS:
            raise Refused(said) from None
        if not self._is_silent:
            self._is_silent = True
            _log.info("asking again, as a call was not answered: %s", said)
        self.use_next(endpoint)
        raise Unavailable(said) from None


def _method(kind: Callable[..., Any], method: str) -> Any:
    """Return a method of etcd by a channel; `kind` is the channel's for its streams."""
    _, name = method.split("/")
    return kind(
        f"/etcdserverpb.{method}",
        request_serializer=message(f"{name}Request").SerializeToString,
        response_deserializer=message(f"{name}Response").FromString,
    )


def _password_in(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise InvalidConfig(f"cluster.etcd.password.file: {error}") from None
    except UnicodeDecodeError:
        raise InvalidConfig(f"cluster.etcd.password.file: {path} is not text in UTF-8") from None


def _credentials(options: EtcdOptions) -> grpc.ChannelCredentials | None:
    """Return what TLS needs; None without TLS. InvalidConfig for files that gRPC would refuse at each call."""
    if options.ca is None:
        return None
    context, what = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), f"cluster.etcd.ca.file: {options.ca}"
    try:
        context.load_verify_locations(options.ca)
        if options.certificate:
            what = f"cluster.etcd.cert.file: {options.certificate}, with the key in {options.key}"
            context.load_cert_chain(options.certificate, options.key, password="")
    except OSError as error:
        raise InvalidConfig(f"{what}, cannot be read as PEM: {error}") from None
    key = options.key.read_bytes() if options.key else None
    chain = options.certificate.read_bytes() if options.certificate else None
    return grpc.ssl_channel_credentials(options.ca.read_bytes(), key, chain)
