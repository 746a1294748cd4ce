"""Programs of a client each that all take the same tasks, `PROGRAM ADDRESS TASK ARGUMENTS`, and what is expected.

| task | does |
|---|---|
| produce TOPIC CODEC COUNT | write records: number n has the key `kn`, the value `vn` and a header `number` |
| consume TOPIC GROUP COUNT | join the group, read as many records, commit them, print each as `key=value`, leave |
| consume-consumer TOPIC GROUP COUNT | the same by KIP-848 |
| transact TOPIC ID COUNT | three transactions of as many records: one is committed, one aborted, one committed |
| admin TOPIC GROUP | create with two partitions, add one, tell partitions and `retention.ms`, the group's lag, delete |
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clients.served import Served

TIMEOUT_S = 120
COUNT = 500


class Program(NamedTuple):
    """A program, started in `directory`."""

    name: str
    command: Sequence[str | Path]
    directory: Path

    def run(self, served: Served, *arguments: object, timeout_s: float = TIMEOUT_S) -> list[str]:
        """What it prints."""
        return run([*self.command, served.address, *arguments], self.directory, timeout_s=timeout_s)


def run(
    command: Sequence[object], directory: Path | None = None, *, lines: str = "", timeout_s: float = TIMEOUT_S
) -> list[str]:
    """The lines that a command prints when it is given these; it has to end well."""
    done = subprocess.run(
        list(map(str, command)), cwd=directory, input=lines, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    return done.stdout.splitlines()


def numbered(first: int = 0, count: int = COUNT) -> list[str]:
    """What a program prints of records that it has read."""
    return [f"k{number}=v{number}" for number in range(first, first + count)]


def check_codec(program: Program, served: Served, codec: str) -> None:
    """What the program writes is read by warmlog's client, and the program reads both its own and warmlog's."""
    topic = f"{program.name}-{codec}"
    served.create(topic)
    program.run(served, "produce", topic, codec, COUNT)
    written = served.read(topic)
    assert sorted(f"{each.key!r}{each.value!r}{list(each.headers)!r}" for each in written) == sorted(
        f"{b'k%d' % number!r}{b'v%d' % number!r}{[('number', b'%d' % number)]!r}" for number in range(COUNT)
    )
    served.write(topic, b"here", None, compression=codec)
    read = program.run(served, "consume", topic, f"{topic}-readers", COUNT + 2)
    assert sorted(each for each in read if each.startswith("k")) == sorted(numbered())
    assert len(read) == COUNT + 2


def check_group(program: Program, served: Served, task: str = "consume") -> None:
    """A second process goes on where the first has committed."""
    topic, group = f"{program.name}-{task}", f"{program.name}-{task}-group"
    served.create(topic, partitions=1)
    program.run(served, "produce", topic, "none", COUNT)
    assert program.run(served, task, topic, group, 200) == numbered(0, 200)
    assert program.run(served, task, topic, group, COUNT - 200) == numbered(200, COUNT - 200)


def check_transactions(program: Program, served: Served) -> None:
    """Readers of committed records see no aborted one, by the program's own client and by warmlog's."""
    topic = f"{program.name}-transactions"
    served.create(topic, partitions=1)
    program.run(served, "transact", topic, f"{topic}-id", 100)
    committed = [*numbered(0, 100), *numbered(200, 100)]
    assert [f"{(each.key or b'').decode()}={(each.value or b'').decode()}" for each in served.read(topic)] == committed
    assert program.run(served, "consume", topic, f"{topic}-readers", 200) == committed


def check_admin(program: Program, served: Served) -> None:
    topic, group = f"{program.name}-lagging", f"{program.name}-lagging-group"
    served.create(topic, partitions=1)
    program.run(served, "produce", topic, "none", COUNT)
    program.run(served, "consume", topic, group, 200)
    said = program.run(served, "admin", f"{program.name}-managed", group)
    assert set(said) >= {"retention.ms 5000", "partitions 3", f"lag {COUNT - 200}", "deleted true"}
