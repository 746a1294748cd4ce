"""What warmlog did not write is never touched, wherever in a data directory it lies."""

from pathlib import Path

from broker_process import BrokerProcess
from wire_client import WireClient, batch_of

STRANGE = [
    "notes.txt",
    "lost+found/inode",
    "backup-of-t/00000000000000000000.log",
    "t-0.bak/00000000000000000000.log",
    "stranger-7/00000000000000000000.log",
    "stranger-7/leader-epoch-checkpoint",
    "t-0/notes.txt",
    "t-0/00000000000000000000.log.bak",
    "t-0/old/00000000000000000000.log",
    "t-0/.hidden",
]


def test_foreign_files_and_directories_survive_starts_stops_and_kills(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            client.produce("t", batch_of([b"x"]))
        for name in STRANGE:
            path = data_dir / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"precious {name}")
        broker.restart()
        broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert client.produce("t", batch_of([b"x"])).base_offset == 1
        assert broker.terminate() == 0
    for name in STRANGE:
        assert (data_dir / name).read_text() == f"precious {name}"
