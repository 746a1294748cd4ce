"""What tests against a real broker share: one for each file, unless the file has its own kind, and its clients."""

import re
from collections.abc import Iterator

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from integration.command_line import CommandLine
from wire_client import WireClient


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With the BROKER_SETTINGS of the file, if it has some."""
    settings = getattr(request.module, "BROKER_SETTINGS", {})
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", **settings) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess | BrokerThread) -> Iterator[WireClient]:
    with WireClient(broker.address) as wire_client:
        yield wire_client


@pytest.fixture
def warmlog(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker.address)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name)
