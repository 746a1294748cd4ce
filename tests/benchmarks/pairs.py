"""What a feature costs: `send_many` to a broker with it and to one without, in pairs of alternating order."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from statistics import median

from benchmarks import produce
from benchmarks.measurement import Run
from broker_process import BrokerProcess

PAIRS = 12


async def cost(
    plain: BrokerProcess,
    changed: BrokerProcess,
    records: int,
    around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> Run:
    """Return the runs with `changed`, and by how much more time and processor time they take than those with `plain`.

    These are the medians of PAIRS pairs. On a busy machine the processor time says more. Each run of `changed` is
    within `around`.
    """
    slower, costlier, seconds = [], [], 0.0
    for pair in range(PAIRS):
        took: dict[BrokerProcess, tuple[float, float]] = {}
        for broker in (plain, changed) if pair % 2 else (changed, plain):
            async with around() if broker is changed else nullcontext():
                took[broker] = await _send(broker, f"pair-{pair}", records)
        (plain_s, plain_cpu_s), (changed_s, changed_cpu_s) = took[plain], took[changed]
        slower.append(changed_s / plain_s)
        costlier.append(changed_cpu_s / plain_cpu_s)
        seconds += changed_s
    figures = {"cost": slower, "broker_cpu": costlier}
    percent = {f"{name}_percent": (median(ratios) - 1) * 100 for name, ratios in figures.items()}
    return Run(records * PAIRS, seconds, percent)


async def _send(broker: BrokerProcess, topic: str, records: int) -> tuple[float, float]:
    """Return the seconds of `records`, and the broker's processor time; their topic is deleted."""
    await produce.create_topic(broker.address, topic)
    cpu_s = _processor_time_s(broker.pid)
    run = await produce.send_many(broker.address, topic, records)
    cpu_s = _processor_time_s(broker.pid) - cpu_s
    await produce.delete_topic(broker.address, topic)
    return run.seconds, cpu_s


def _processor_time_s(pid: int) -> float:
    """Of all threads of a process, to the nanosecond: /proc counts ticks, and one is 3 % of a run.

    The clock's number is that of clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | 2)
