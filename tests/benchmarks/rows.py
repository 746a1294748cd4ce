"""What the rows of `make bench` share: how much each does, the brokers, the settings that stand beside the figures."""

import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measurement import MB, VALUE_BYTES, Run
from broker_process import BrokerProcess, port_to_keep
from warmlog import Producer, WarmlogError
from warmlog_broker import BrokerConfig

READ_TOPIC = "bench-read"
USER = PASSWORD = "bench"
DEFAULTS_OF_TESTS = ("crash.loop.limit", "log.format")
"""Settings that BrokerProcess gives every broker, also one of a build that has not got them."""

BrokerT = TypeVar("BrokerT", bound=BrokerProcess)


@dataclass(frozen=True)
class Scale:
    """How much each run does. `--quick` is a tenth of it: for a first look, too short for figures to trust."""

    rounds: int = 5
    send_records: int = 500_000
    send_many_records: int = 3_000_000
    latency_records: int = 3_000
    read_records: int = 4_000_000
    single_records: int = 1_000_000
    limit_bytes: int = 500 * MB
    group_requests: int = 20_000
    handshakes: int = 4_000
    metrics_records: int = 3_000_000
    transactions: int = 200
    joining: int = 200

    @classmethod
    def quick(cls) -> "Scale":
        return cls(2, 100_000, 500_000, 1_000, 500_000, 100_000, 100 * MB, 5_000, 800, 2_000_000, 50, 40)


@dataclass(frozen=True)
class Benchmark:
    """A row: its name, what it was done with, and a run of it."""

    name: str
    settings: Mapping[str, object]
    run: Callable[..., Run | Coroutine[Any, Any, Run]]
    partitions: int = 0
    """Of a new topic, whose name `run` is given. With 0 it takes no topic."""
    reads: bool = False
    """Whether READ_TOPIC must be filled."""
    is_secured: bool = False
    """Whether the run is against the broker with TLS and authentication."""


class SecuredBroker(BrokerProcess):
    """A broker with listeners without TLS and with it, without authentication and with it."""

    def __init__(self, directory: Path) -> None:
        from certificates import Certificates  # 0.1.0 is developed without what makes them

        self.certificates = Certificates(directory / "certificates")
        self.tls_address = f"127.0.0.1:{port_to_keep()}"
        self.tls_options: dict[str, Any] = {"ssl": True, "ssl_cafile": self.certificates.ca}
        self.sasl_address = f"127.0.0.1:{port_to_keep()}"
        self.sasl_tls_address = f"127.0.0.1:{port_to_keep()}"
        data_dir = directory / "data"
        user = ["user", "add", USER, "--password-file", "-", "--data-dir", str(data_dir)]
        subprocess.run([sys.executable, "-m", "warmlog", *user], input=PASSWORD.encode(), check=True, stderr=-1)
        listeners = (
            f"plain=plaintext://127.0.0.1:{port_to_keep()},tls=ssl://{self.tls_address},"
            f"sasl=sasl_plaintext://{self.sasl_address},sasl_tls=sasl_ssl://{self.sasl_tls_address}"
        )
        super().__init__(data_dir, listeners=listeners, tls_cert_file=self.certificates.broker)


class Bench:
    """The brokers, and what every row is given."""

    def __init__(self, directory: Path, scale: Scale, loop: str, exits: ExitStack) -> None:
        self.directory = directory
        self.scale = scale
        self.client: dict[str, object] = {"client_loop": loop, "broker_loop": "uvloop"}
        self.producer = self.client | _producer_defaults() | {"fsync": "before each acknowledgement"}
        self._exits = exits
        self._brokers: list[BrokerProcess] = []
        self._topics = 0

    @cached_property
    def broker(self) -> BrokerProcess:
        """The broker of most rows, started when the first needs it."""
        return self._started(BrokerProcess(self.directory / "data"))

    @cached_property
    def secured(self) -> SecuredBroker:
        return self._started(SecuredBroker(self.directory / "secured"))

    @property
    def bootstrap(self) -> str:
        return self.broker.address

    @property
    def output(self) -> str:
        """What the brokers that were started have logged."""
        return "".join(broker.output for broker in self._brokers)

    def settings(self, **own: object) -> dict[str, object]:
        """What every figure was taken with, and `own` beside it."""
        return {
            "value_bytes": VALUE_BYTES,
            "partitions": 1,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            **own,
        }

    def own_topic(self) -> str:
        """The name of a topic that no other run uses."""
        self._topics += 1
        return f"bench-{self._topics}"

    def _started(self, broker: BrokerT) -> BrokerT:
        for name in DEFAULTS_OF_TESTS:
            if not _is_known(name, broker.settings[name]):
                del broker.settings[name]
        self._brokers.append(broker)
        self._exits.enter_context(broker)
        return broker


def _is_known(name: str, value: str) -> bool:
    """Whether the build that is measured has a setting."""
    with suppress(WarmlogError, ValueError):
        BrokerConfig.from_settings({"data.dir": ".", name: value})
        return True
    return False


def _producer_defaults() -> dict[str, object]:
    """What a Producer that is told nothing does."""
    parameters = inspect.signature(Producer).parameters
    names = ("acks", "compression", "linger_ms", "batch_bytes", "max_in_flight")
    return {"idempotent": True, **{name: parameters[name].default for name in names}}
