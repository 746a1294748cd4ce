"""A deletion that a crash interrupted, on a disk that has damaged or refuses what is left: the broker starts."""

from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.tracing import InjectedBroker, why_not_traced
from warmlog_protocol.errors import InvalidTopic
from warmlog_protocol.messages import DeleteTopicsRequest
from wire_client import ConnectionEnded, WireClient, batch_of

pytestmark = pytest.mark.skipif(bool(why_not_traced()), reason=why_not_traced())

METADATA = "partition.metadata"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The broker was killed between the entry in the metadata log and the first rename."""
    path = tmp_path / "data"
    killed = InjectedBroker(path, inject="rename:signal=KILL:when=1", path=path / "t-0")
    with killed, WireClient(killed.address) as client:
        client.create_topic("t", partitions=2)
        for partition in range(2):
            client.produce("t", batch_of([b"x"]), partition=partition)
        client.create_topic("other")
        with pytest.raises((ConnectionEnded, OSError)):
            client.call(DeleteTopicsRequest(["t"]))
    assert partitions_in(path) == ["other-0", "t-0", "t-1"]
    return path


def partitions_in(data_dir: Path) -> list[str]:
    return sorted(path.name for path in data_dir.glob("*-[0-9]"))


def check_served(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.produce("other", batch_of([b"x"]))


def test_one_flipped_bit_in_what_is_left_stops_no_start(data_dir: Path) -> None:
    path = data_dir / "t-0" / METADATA
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    record = (data_dir / "t-0" / f"{0:020d}.log").read_bytes()
    with BrokerProcess(data_dir) as broker:
        check_served(broker)
        assert partitions_in(data_dir) == ["other-0", "t-0"]
        assert f"{data_dir / 't-0'} is left alone" in broker.output
        broker.restart()
        check_served(broker)
        assert (data_dir / "t-0" / f"{0:020d}.log").read_bytes() == record
        with WireClient(broker.address) as client, pytest.raises(InvalidTopic, match="move it away first"):
            client.create_topic("t")


@pytest.mark.parametrize(("refused", "path"), [("openat", "t-0/partition.metadata"), ("rename", "t-0")])
@pytest.mark.parametrize("errno", ["EIO", "EACCES"])
def test_what_the_disk_refuses_now_is_left_to_the_next_start(
    data_dir: Path, refused: str, path: str, errno: str
) -> None:
    with InjectedBroker(data_dir, inject=f"{refused}:error={errno}", path=data_dir / path) as broker:
        check_served(broker)
        assert partitions_in(data_dir) == ["other-0", "t-0"]
        assert f"{data_dir / 't-0'} may belong to a deleted topic, the next start tries again" in broker.output
        broker.terminate()
    with BrokerProcess(data_dir) as broker:
        check_served(broker)
        assert partitions_in(data_dir) == ["other-0"]
