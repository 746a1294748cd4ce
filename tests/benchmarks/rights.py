"""What rights cost: a decision alone, and `send_many` to a broker that asks for rights and to one that does not."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks import pairs
from benchmarks.measurement import Run
from benchmarks.rows import Bench, Benchmark
from broker_process import BrokerProcess
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.metadata_log import MetadataState
from warmlog_broker.security.authorizer import Authorizer
from warmlog_protocol.messages import AclBinding, Operation, ResourceType

RULES = 10_000
TOPICS = 1_000


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    yield Benchmark(
        "rights.decision",
        bench.settings(rules=RULES, topics=TOPICS, record="a decision about one topic"),
        lambda: decisions(bench.scale.single_records),
    )
    yield Benchmark(
        "rights.cost",
        bench.settings(**bench.producer, pairs_in_a_run=pairs.PAIRS),
        lambda: cost(bench.directory / "rights", bench.scale.metrics_records),
    )


def decisions(count: int) -> Run:
    """Decide `count` times about TOPICS topics, with RULES rules; a record is a decision. Then without remembering."""
    state = MetadataState()
    for number in range(RULES):
        rule = AclBinding(f"User:{number % 100}", Operation.READ, ResourceType.TOPIC, f"topic-{number // 100}", True)
        state.acls[rule] = None
    config = BrokerConfig.from_settings({"data.dir": "none", "authorization": "acl", "super.users": "User:root"})
    rights = Authorizer(cast("Any", SimpleNamespace(state=state)), config)
    names = [f"topic-{number}" for number in range(TOPICS)]
    seconds = {}
    for kind in ("first", "repeated"):
        began_s = time.perf_counter()
        for _ in range(1 if kind == "first" else count // TOPICS):
            for name in names:
                rights.may("User:7", Operation.READ, ResourceType.TOPIC, name)
        seconds[kind] = time.perf_counter() - began_s
    figures = {"decision_ns": seconds["repeated"] / count * 1e9, "first_decision_ns": seconds["first"] / TOPICS * 1e9}
    return Run(count, seconds["repeated"], figures)


def allow_everything(data_dir: Path) -> None:
    """Give every principal all rights, by a command that older builds have, too."""
    resources = ("--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster")
    command = [sys.executable, "-m", "warmlog", "acl", "add", "*", "all", *resources, "--data-dir"]
    subprocess.run([*command, str(data_dir)], check=True)


async def cost(directory: Path, records: int) -> Run:
    """Return the runs with rights, compared with those without."""
    allow_everything(directory / "guarded")
    with (
        BrokerProcess(directory / "open") as plain,
        BrokerProcess(directory / "guarded", authorization="acl") as guarded,
    ):
        return await pairs.cost(plain, guarded, records)
