"""Kafka Streams: a count by `exactly_once_v2`, whose process is killed again and again."""

import random
from collections import Counter
from pathlib import Path

from clients.java import compile_class, java, running
from clients.served import Served
from waiting import wait_until

CLIENT = "Kafka Streams 4.4.0"
KILLS = 10
RECORDS_A_KILL = 250
RECORDS = (KILLS + 1) * RECORDS_A_KILL
TIMEOUT_S = 120.0


def test_a_count_is_exact_after_its_process_was_killed(served: Served, tmp_path: Path) -> None:
    served.create("words", partitions=2)
    served.create("counted", partitions=2)
    compile_class("streams", "Count")
    command = java("streams", "Count", served.address, "words", "counted", "counting", tmp_path / "state")
    chance = random.Random(1)
    words = [b"word-%d" % chance.randrange(50) for _ in range(RECORDS)]

    def counted() -> int:
        return sum(latest(served).values())

    for first in range(0, RECORDS, RECORDS_A_KILL):
        before = counted()
        served.write("words", *words[first : first + RECORDS_A_KILL])
        with running(command, tmp_path / "log"):
            is_last = first + RECORDS_A_KILL >= RECORDS
            wanted = RECORDS if is_last else before + chance.randrange(1, RECORDS_A_KILL)
            wait_until(lambda wanted=wanted: counted() >= wanted, timeout_s=TIMEOUT_S)
    assert latest(served) == Counter(word.decode() for word in words)
    every: Counter[str] = Counter((each.key or b"").decode() for each in served.read("counted"))
    assert sum(every.values()) <= RECORDS


def latest(served: Served) -> Counter[str]:
    """The newest count of each word that readers of committed records see."""
    return Counter({(each.key or b"").decode(): int(each.value or b"0") for each in served.read("counted")})
