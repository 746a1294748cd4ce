"""Passwords and certificates, between brokers and etcd and between brokers."""

from pathlib import Path

import pytest

from broker_process import BrokerFailed
from certificates import Certificates
from cluster_processes import ClusterProcesses
from etcd_process import EtcdProcess, needs_etcd
from warmlog.blocking import Admin, Producer

pytestmark = needs_etcd


@pytest.mark.slow
def test_brokers_authenticate_at_etcd_and_a_wrong_password_is_refused(tmp_path: Path) -> None:
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "wrong").write_text("another\n")
    with EtcdProcess(tmp_path / "etcd") as etcd:
        settings = {"cluster_etcd_user": "root", "cluster_etcd_password_file": tmp_path / "right"}
        cluster = ClusterProcesses(tmp_path / "c", brokers=1, etcd=etcd, **settings)
        cluster.create()
        etcd.enable_auth("secret")
        with cluster.brokers[1] as broker:
            create(broker.address)
        wrong = cluster.broker(2, tmp_path / "c", cluster_etcd_password_file=tmp_path / "wrong")
        with pytest.raises(BrokerFailed, match=r"cannot be read from etcd: .*invalid user ID or password"), wrong:
            pass
        nameless = cluster.broker(2, tmp_path / "c", cluster_etcd_user="", cluster_etcd_password_file="")
        with pytest.raises(BrokerFailed, match=r"cannot be read from etcd: .*user name is empty"), nameless:
            pass


def test_brokers_reach_etcd_and_each_other_by_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with EtcdProcess(tmp_path / "etcd", certificate=certificates.broker, ca=certificates.ca) as etcd:
        settings = {"cluster_etcd_ca_file": certificates.ca, "tls_cert_file": certificates.broker}
        settings["tls_ca_file"] = certificates.ca
        cluster = ClusterProcesses(tmp_path / "c", brokers=2, etcd=etcd, **settings)
        for broker in cluster.brokers.values():
            broker.settings["listeners"] = f"secure=ssl://{broker.address}"
        cluster.create()
        with cluster.brokers[1] as first, cluster.brokers[2]:
            create(first.address, ssl=True, ssl_cafile=certificates.ca)
            with Producer(cluster.addresses, ssl=True, ssl_cafile=certificates.ca) as producer:
                assert producer.send("orders", b"1").result().offset == 0, "acks=all: both brokers have it"


def create(address: str, **options: object) -> None:
    with Admin(address, **options) as admin:
        admin.create_topic("orders", partitions=1)
