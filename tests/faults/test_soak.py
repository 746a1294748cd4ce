"""What the soak takes for drift; and a soak of a few seconds, which runs all of its parts."""

import json
import math
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from faults.soak import slopes
from faults.soak.__main__ import report
from faults.soak.run import Plan, soak
from faults.soak.sampling import open_files
from faults.soak.speed import Speedometer

TIMES_S = [5.0 * number for number in range(288)]
"""24 minutes: what is left of 30 after warming up."""


def noisy(a_second: float, *, middle: float = 200.0, noise: float = 1.0, seed: int = 1) -> list[float]:
    """Samples around `middle` that grow by so much a second."""
    luck = Random(seed)
    return [middle + a_second * at_s + luck.gauss(0, noise) for at_s in TIMES_S]


def test_the_slope_of_a_line_is_its_slope_and_outliers_do_not_move_it() -> None:
    values = [3 + 0.5 * at_s for at_s in TIMES_S]
    assert slopes.slope(TIMES_S, values) == pytest.approx(0.5)
    values[10] = 1e9
    values[200] = -1e9
    assert slopes.slope(TIMES_S, values) == pytest.approx(0.5)


def test_many_samples_are_thinned_and_few_have_no_slope() -> None:
    times_s = [float(number) for number in range(5000)]
    assert slopes.slope(times_s, [2 * at_s for at_s in times_s]) == pytest.approx(2)
    assert slopes.slope([1.0], [7.0]) == slopes.slope([], []) == 0


@pytest.mark.parametrize("seed", range(3))
def test_memory_that_stays_is_fine_and_a_planted_leak_is_found(seed: int) -> None:
    mib_an_hour = 1 / 3600
    assert slopes.growth("rss", TIMES_S, noisy(0, seed=seed), slopes.MEMORY).is_good
    assert slopes.growth("rss", TIMES_S, noisy(-50 * mib_an_hour, seed=seed), slopes.MEMORY).is_good
    assert not slopes.growth("rss", TIMES_S, noisy(20 * mib_an_hour, seed=seed), slopes.MEMORY).is_good


def test_what_jumps_and_comes_back_is_no_leak_and_steps_are_one() -> None:
    waves = [200 + 20 * math.sin(at_s / 30) for at_s in TIMES_S]
    assert slopes.growth("rss", TIMES_S, waves, slopes.MEMORY).is_good
    steps = [200 + 3 * (at_s // 180) for at_s in TIMES_S]
    assert not slopes.growth("rss", TIMES_S, steps, slopes.MEMORY).is_good


def test_a_descriptor_or_a_thread_left_open_every_few_minutes_is_found() -> None:
    leaking = [400 + at_s // 240 for at_s in TIMES_S]
    assert not slopes.growth("descriptors", TIMES_S, leaking, slopes.DESCRIPTORS).is_good
    assert not slopes.growth("threads", TIMES_S, leaking, slopes.THREADS).is_good
    busy = [400.0 + Random(int(at_s)).randrange(6) for at_s in TIMES_S]
    assert slopes.growth("descriptors", TIMES_S, busy, slopes.DESCRIPTORS).is_good


@pytest.mark.parametrize(("last", "is_good"), [(5.0, True), (5.9, True), (6.1, False), (1.0, True)])
def test_a_latency_may_rise_by_its_allowance_only(last: float, is_good: bool) -> None:
    values = [5.0] * 100 + [7.0] * 100 + [last] * 100
    verdict = slopes.drift("p99", values, unit="ms", allowed=0.2)
    assert verdict.is_good is is_good
    assert not slopes.drift("p99", [], unit="ms", allowed=0.2).is_good


def test_open_segments_are_told_from_descriptors_that_leak(tmp_path: Path) -> None:
    names = ["00.log", "00.index", "00.timeindex", "00.txnindex", "05.log.deleted", "06.log", "lock"]
    with ExitStack() as stack:
        before = open_files(Path("/proc/self/fd"))
        for name in [*names, "00.log", "00.index"]:
            stack.enter_context((tmp_path / name).open("wb"))
        (tmp_path / "06.log").unlink()
        for end in socket.socketpair():
            stack.enter_context(end)
        descriptors, segment_files = open_files(Path("/proc/self/fd"))
    assert segment_files - before[1] == 5
    leaking = ["06.log (deleted)", "lock", "00.log again", "00.index again", "socket", "socket"]
    assert descriptors - before[0] == 5 + len(leaking)
    assert open_files(Path("/proc/self/fd")) == before


def test_the_speed_is_that_of_the_time_since_the_last_look() -> None:
    with Speedometer() as speedometer:
        time.sleep(0.5)
        first = speedometer.take()
        time.sleep(0.5)
        assert 0.1 < speedometer.take() / first < 10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("planted", "is_good"), [(0.0, True), (0.1, True), (0.35, False), (-0.5, True)])
def test_a_latency_that_follows_the_machine_is_told_from_one_that_rises_by_itself(
    seed: int, planted: float, is_good: bool
) -> None:
    luck = Random(seed)
    speeds = [1.2 - 0.4 * at_s / TIMES_S[-1] + luck.gauss(0, 0.08) for at_s in TIMES_S]  # slower and slower
    rise = [(1 + planted) ** (1.5 * at_s / TIMES_S[-1]) for at_s in TIMES_S]  # thirds are two thirds of it apart
    p99s = [30 * more / speed**2.5 * math.exp(luck.gauss(0, 0.2)) for more, speed in zip(rise, speeds, strict=True)]
    found = slopes.drift_at_equal_speed("p99", TIMES_S, p99s, speeds, allowed=0.2)
    assert found.is_good is is_good, found


def test_few_samples_tell_nothing_of_a_latency() -> None:
    assert not slopes.drift_at_equal_speed("p99", TIMES_S[:5], [5.0] * 5, [1.0] * 5, allowed=0.2).is_good


def test_bounds_are_inclusive() -> None:
    assert slopes.at_most("lag", 3.0, 3.0, "s").is_good
    assert not slopes.at_most("lag", 3.1, 3.0, "s").is_good
    assert slopes.at_least("held", 0.97, 0.97).is_good
    assert not slopes.at_least("held", 0.96, 0.97).is_good


def test_a_short_soak_runs_every_part_without_an_error(tmp_path: Path) -> None:
    plan = Plan(minutes=0.1, share=0.3, saturate_s=1, sample_s=1, settle_s=0.5)
    lines: list[str] = []
    result = soak(tmp_path, plan, lines.append)
    assert result.errors == []
    assert result.missing == 0
    assert result.peak_records_per_s > 100
    assert len(result.samples) >= 3
    assert all(each.processes["broker"].rss_mib > 1 for each in result.samples)
    reports = result.reports
    assert reports["consuming"]["tail_records"] == reports["producing"]["acknowledged"] > 0
    assert reports["consuming"]["reread_records"] > 0
    assert reports["churning"]["connections"] > 0
    assert reports["churning"]["topics"] > 0
    assert result.held > 0
    assert all(each.speed > 0 for each in result.samples)
    assert "p99 of produce" in report(result)
    assert json.loads(json.dumps(result.as_json()))["rate"] == result.rate
    assert lines
