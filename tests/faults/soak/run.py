"""One soak: the peak first, then a share of it for so long, with samples of every process, and what they come to."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from broker_process import BrokerProcess
from faults.soak import slopes, topics
from faults.soak.sampling import ProcessSample, sample, sync_ms, used_mib
from faults.soak.speed import Speedometer
from faults.soak.worker import Report, Worker

WORKERS = ("producing", "consuming", "churning")
WARM_UP_SHARE = 0.2
ALLOWED_DRIFT = 0.2
HELD_SHARE = 0.97
MAX_LAG_S = 3.0
"""The two totals are each up to a second old."""
RAMP_SHARE = 1 / 6
"""Of the time for the peak: until queues and caches are full."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long everything takes."""

    minutes: float
    share: float
    saturate_s: float = 120.0
    sample_s: float = 5.0
    settle_s: float = 5.0
    """Between the peak and the first sample: the queues of the peak empty."""


@dataclass(slots=True)
class Sample:
    """One look at everything."""

    at_s: float
    processes: dict[str, ProcessSample]
    p50_ms: float | None
    p99_ms: float | None
    acknowledged: int
    lag_records: int
    disk_mib: float
    sync_ms: float
    speed: float
    """Of the machine, in pieces of fixed work a second of processor time."""


@dataclass(slots=True)
class Soak:
    """What a run has found."""

    plan: Plan
    peak_records_per_s: float = 0.0
    rate: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    """The last report of each process of clients."""
    exit_codes: dict[str, int] = field(default_factory=dict)

    @property
    def judged(self) -> list[Sample]:
        """The samples after warming up."""
        return self.samples[int(len(self.samples) * WARM_UP_SHARE) :]

    @property
    def verdicts(self) -> list[slopes.Verdict]:
        """Every bar, in the order of the report."""
        judged = self.judged
        times_s = [each.at_s for each in judged]
        found: list[slopes.Verdict] = []
        for name in ("broker", *WORKERS):
            looks = [each.processes[name] for each in judged]
            found += [
                slopes.growth(f"{name} memory (RSS)", times_s, [look.rss_mib for look in looks], slopes.MEMORY),
                slopes.growth(f"{name} memory (PSS)", times_s, [look.pss_mib for look in looks], slopes.MEMORY),
                slopes.growth(f"{name} descriptors", times_s, [look.descriptors for look in looks], slopes.DESCRIPTORS),
                slopes.growth(
                    f"{name} descriptors but those of segment files",
                    times_s,
                    [look.other_descriptors for look in looks],
                    slopes.DESCRIPTORS,
                ),
                slopes.growth(f"{name} maps", times_s, [look.maps for look in looks], slopes.MAPS),
                slopes.growth(f"{name} threads", times_s, [look.threads for look in looks], slopes.THREADS),
            ]
        lags_s = [each.lag_records / self.rate for each in judged]
        return [
            *found,
            slopes.at_least("load that was held", self.held, HELD_SHARE),
            *self._p99_drifts,
            slopes.at_most("consumer lag, median", median(lags_s) if lags_s else 0.0, MAX_LAG_S, "s of records"),
            slopes.at_most(
                "disk", max((each.disk_mib for each in self.samples), default=0.0), topics.DISK_LIMIT_MIB, "MiB"
            ),
            slopes.at_most("records not acknowledged", self.missing, 0, "records"),
            slopes.at_most("errors of clients", len(self.errors), 0, "errors"),
        ]

    @property
    def _p99_drifts(self) -> list[slopes.Verdict]:
        looks = [(each.at_s, each.p99_ms, each.speed) for each in self.judged if each.p99_ms]
        times_s, p99s_ms, speeds = ([look[field] for look in looks] for field in range(3))
        return [
            slopes.drift("p99 of produce", p99s_ms, unit="ms", allowed=ALLOWED_DRIFT),
            slopes.drift_at_equal_speed(
                "p99 of produce, at equal speed of the machine", times_s, p99s_ms, speeds, allowed=ALLOWED_DRIFT
            ),
        ]

    @property
    def held(self) -> float:
        """What was acknowledged between the first and the last sample, as a share of what was to be sent."""
        if len(self.samples) < 2:
            return 0.0
        first, last = self.samples[0], self.samples[-1]
        return (last.acknowledged - first.acknowledged) / (self.rate * (last.at_s - first.at_s))

    @property
    def missing(self) -> int:
        """Records that were sent and not acknowledged, in the end."""
        report = self.reports["producing"]
        return int(report["sent"] - report["acknowledged"])

    @property
    def errors(self) -> list[str]:
        """What went wrong for some client, gaps that the tail reader saw included."""
        found = [f"{name}: {error}" for name, report in self.reports.items() for error in report["errors"]]
        found += [f"{name}: exit code {code}" for name, code in self.exit_codes.items() if code]
        if gaps := self.reports["consuming"]["gaps"]:
            found.append(f"consuming: {gaps} gaps between offsets")
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            **asdict(self),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "is_good": all(verdict.is_good for verdict in self.verdicts),
        }


def soak(workspace: Path, plan: Plan, say: Callable[[str], None]) -> Soak:
    """Runs it all; `say` is told a line now and then."""
    result = Soak(plan)
    with ExitStack() as stack:
        speedometer = stack.enter_context(Speedometer())
        broker = stack.enter_context(BrokerProcess(workspace / "data", **topics.BROKER))
        asyncio.run(topics.create(broker.address))
        workers = {name: stack.enter_context(Worker(name, broker.address)) for name in WORKERS}
        pids = {"broker": broker.pid, **{name: worker.pid for name, worker in workers.items()}}
        result.peak_records_per_s = _find_peak(workers, plan)
        result.rate = plan.share * result.peak_records_per_s
        say(f"peak {result.peak_records_per_s:,.0f} records/s; holding {result.rate:,.0f} for {plan.minutes:g} min")
        workers["producing"].order(rate=result.rate)
        time.sleep(plan.settle_s)
        speedometer.take()
        _hold(workers, pids, workspace, result, speedometer, say)
        for name, worker in workers.items():
            result.exit_codes[name] = worker.finish()
            result.reports[name] = (worker.take() or [result.reports[name]])[-1]
    return result


def _find_peak(workers: dict[str, Worker], plan: Plan) -> float:
    """How many records a second are acknowledged when the same clients send as fast as they can."""
    producing = workers["producing"]
    producing.order(rate=None)
    time.sleep(plan.saturate_s * RAMP_SHARE)
    producing.take()
    started_s = time.monotonic()
    first = _next_report(producing)["acknowledged"]
    time.sleep(max(1.0, plan.saturate_s * (1 - RAMP_SHARE) - (time.monotonic() - started_s)))
    producing.take()
    ended_s = time.monotonic()
    last = _next_report(producing)["acknowledged"]
    return float(last - first) / (ended_s - started_s)


def _next_report(worker: Worker) -> Report:
    while True:
        if reports := worker.take():
            return reports[-1]
        if worker.has_ended:
            raise RuntimeError(f"the process {worker.name} has ended")
        time.sleep(0.01)


def _hold(
    workers: dict[str, Worker],
    pids: dict[str, int],
    workspace: Path,
    result: Soak,
    speedometer: Speedometer,
    say: Callable[[str], None],
) -> None:
    plan = result.plan
    started_s = time.monotonic()
    next_s = started_s
    for worker in workers.values():
        worker.take()
    while time.monotonic() < started_s + 60 * plan.minutes:
        next_s += plan.sample_s
        time.sleep(max(0.0, next_s - time.monotonic()))
        reports = {name: worker.take() for name, worker in workers.items()}
        result.reports.update({name: taken[-1] for name, taken in reports.items() if taken})
        for name, worker in workers.items():
            if worker.has_ended:
                raise RuntimeError(f"the process {name} has ended")
        at_s = time.monotonic() - started_s
        result.samples.append(_look(at_s, pids, workspace, reports, result.reports, speedometer.take()))
        if len(result.samples) % 12 == 1:
            say(_line(result.samples[-1]))


def _look(
    at_s: float,
    pids: dict[str, int],
    workspace: Path,
    new: dict[str, list[Report]],
    last: dict[str, Report],
    speed: float,
) -> Sample:
    p50s = [report["p50_ms"] for report in new["producing"] if report["p50_ms"] is not None]
    p99s = [report["p99_ms"] for report in new["producing"] if report["p99_ms"] is not None]
    return Sample(
        at_s=at_s,
        processes={name: sample(pid) for name, pid in pids.items()},
        p50_ms=median(p50s) if p50s else None,
        p99_ms=median(p99s) if p99s else None,
        acknowledged=last["producing"]["acknowledged"],
        lag_records=max(0, last["producing"]["acknowledged"] - last["consuming"]["tail_records"]),
        disk_mib=used_mib(workspace / "data"),
        sync_ms=sync_ms(workspace),
        speed=speed,
    )


def _line(each: Sample) -> str:
    memory = ", ".join(f"{name} {look.rss_mib:.0f}" for name, look in each.processes.items())
    broker = each.processes["broker"]
    p50_ms, p99_ms = each.p50_ms or 0.0, each.p99_ms or 0.0
    return (
        f"{each.at_s / 60:5.1f} min: RSS in MiB: {memory}; "
        f"broker: {broker.segment_files} files of segments, {broker.other_descriptors} other descriptors, "
        f"{broker.maps} maps, {broker.threads} threads; "
        f"produce p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms; lag {each.lag_records} records; "
        f"disk {each.disk_mib:.0f} MiB, sync {each.sync_ms:.1f} ms; "
        f"the machine's speed {each.speed:.0f}"
    )
