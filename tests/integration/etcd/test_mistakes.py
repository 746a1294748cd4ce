"""What an operator reads who has given a wrong file or address of etcd, or whose broker does not react."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_process import BrokerFailed, BrokerProcess, port_to_keep
from certificates import Certificates
from etcd_process import EtcdProcess, needs_etcd
from waiting import wait_until
from warmlog.cli.app import build_program
from warmlog.cli.commands.cluster import change
from warmlog_broker.cluster.keys import Keys, Registration, to_bytes
from warmlog_broker.etcd.client import EtcdClient
from warmlog_broker.etcd.connection import EtcdOptions
from warmlog_broker.etcd.coordination import Put
from warmlog_broker.tools.cluster.init import create_cluster
from warmlog_protocol.errors import InvalidConfig

KEYS = Keys("test")


def broker_at(etcd: str, directory: Path, **settings: object) -> BrokerProcess:
    (directory / "secret").write_text("of the brokers of this test\n")
    common = {"cluster_etcd": etcd, "cluster_id": "test", "cluster_secret_file": directory / "secret", "node_id": 1}
    return BrokerProcess(directory / "data", **common, **settings)  # type: ignore[arg-type]


def failed(etcd: str, *words: str) -> str:
    """What `warmlog cluster` says as it fails."""
    place = {"WARMLOG_CLUSTER_ETCD": etcd, "WARMLOG_CLUSTER_ID": "test"}
    done = CliRunner().invoke(build_program(), ["cluster", *words], prog_name="warmlog", env=place)
    assert done.exit_code == 1, done.output
    return done.output


@pytest.mark.parametrize("setting", ["cluster.etcd.password.file", "cluster.etcd.ca.file"])
def test_a_file_that_is_none_of_its_kind_is_refused_by_the_name_of_its_setting(tmp_path: Path, setting: str) -> None:
    path, nowhere = tmp_path / "given", f"127.0.0.1:{port_to_keep()}"
    path.write_bytes(b"\xff\xfe no text")
    settings = {"cluster_etcd_user": "warmlog", setting.replace(".", "_"): path}
    with pytest.raises(BrokerFailed) as refused, broker_at(nowhere, tmp_path, **settings):
        pass
    assert f"{setting}: {path}" in refused.value.output
    assert "Traceback" not in refused.value.output
    option = f"--{setting.removeprefix('cluster.').replace('.', '-')}"
    assert f"{setting}: {path}" in failed(nowhere, "status", option, str(path))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    ca, own, other = (Path(path) for path in (certificates.ca, certificates.broker, certificates.alice))
    with pytest.raises(InvalidConfig, match=rf"cluster\.etcd\.cert\.file: {own}, with the key in {other}"):
        EtcdClient(EtcdOptions(endpoints=("127.0.0.1:1",), ca=ca, certificate=own, key=other))


def test_that_etcd_is_not_reached_is_said_at_once_and_a_stop_meanwhile_is_one_of_a_start(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{port_to_keep()}"
    broker = broker_at(nowhere, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(broker.start)
        wait_until(lambda: f"asking again, as a call was not answered: etcd at {nowhere}: " in broker.output)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGTERM)
        with pytest.raises(BrokerFailed):
            starting.result()
    assert "told to stop while starting" in broker.output


@needs_etcd
def test_a_broker_that_does_not_react_to_drain_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "REACTION_S", 0.2)
    registered = Registration(uuid="u", endpoints={}, peer_listener="default", directories=[])
    with EtcdProcess(tmp_path) as etcd:

        async def prepare() -> None:
            client = EtcdClient(etcd.options)
            await create_cluster(client, "test")
            await client.txn([], [Put(KEYS.broker(9), to_bytes(registered))])
            await client.close()

        asyncio.run(prepare())
        said = failed(etcd.addresses[0], "drain", "9")
        assert "broker 9 has not confirmed within 0.2 s that it leads nothing more" in said
