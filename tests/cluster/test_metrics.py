"""The metrics of a broker of a cluster, as its page names them."""

import asyncio
import re
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from broker_process import port_to_keep
from cluster_processes import ClusterProcesses
from etcd_process import needs_etcd
from waiting import wait_until
from warmlog import Admin, Producer

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def scraped(port: int) -> tuple[dict[str, str], dict[str, float]]:
    """The types of families of a cluster, and the values of their samples; the labels are in the names."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    own = [family for family in families if family.name.startswith("warmlog_cluster_")]
    values = {
        "/".join([sample.name.removeprefix("warmlog_cluster_"), *sample.labels.values()]): sample.value
        for family in own
        for sample in family.samples
    }
    return {family.name: family.type for family in own}, values


@needs_etcd
def test_what_the_page_names_is_measured_and_shows_what_happens(tmp_path: Path) -> None:
    documented = dict(re.findall(r"^\| `(warmlog_cluster_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    cluster = ClusterProcesses(tmp_path / "c", brokers=2, broker_session_timeout_ms=6000)
    ports = {node: port_to_keep() for node in cluster.brokers}
    for node, broker in cluster.brokers.items():
        broker.settings["admin.listen"] = f"127.0.0.1:{ports[node]}"

    async def fill() -> int:
        async with Admin(cluster.addresses) as admin, Producer(cluster.addresses) as producer:
            await admin.create_topic("orders", partitions=1)
            await producer.send("orders", b"1")
            return (await admin.describe_topic("orders")).partitions[0].leader

    with cluster:
        leader = asyncio.run(fill())
        with urlopen(f"http://127.0.0.1:{ports[leader]}/healthz/in-sync", timeout=60) as answer:
            assert answer.read() == b"ready\n"
        kinds, values = scraped(ports[leader])
        assert kinds == {name.removesuffix("_total"): kind for name, kind in documented.items()}
        assert (values["brokers"], values["replicas"], values["leaders"]) == (2, 1, 1)
        assert values["leaderless_partitions"] == values["under_replicated_partitions"] == 0
        kept_alive = "etcd_seconds_count/LeaseKeepAlive/answered"
        wait_until(lambda: scraped(ports[leader])[1].get(kept_alive, 0) > 0)
        other = 3 - leader
        assert scraped(ports[other])[1]["leaders"] == 0
        cluster.brokers[leader].terminate()
        wait_until(lambda: scraped(ports[other])[1]["leaders"] == 1)
        assert scraped(ports[other])[1]["changes_total/elected"] == 1
        wait_until(lambda: scraped(ports[other])[1]["under_min_isr_partitions"] == 1)
        assert scraped(ports[other])[1]["under_replicated_partitions"] == 1
