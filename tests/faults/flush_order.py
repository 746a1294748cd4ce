"""What a trace of system calls says about acknowledgements: was everything on disk before the answer was sent?

`read_calls` understands what `strace -f -yy` writes; `early_answers` is a plain function over it. In the file one line
stands for a call that nothing else interrupted; where other threads had something to say in between, a call has one
line for its begin and one for its end.
"""

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from broker_process import BrokerProcess

NAMES = ("mkdir", "rename", "openat")
WRITES = ("pwrite64", "pwritev", "pwritev2")
SYNCS = ("fsync", "fdatasync", "syncfs")
SENDS = ("write", "writev", "sendto", "sendmsg", "sendfile")
_LINE = re.compile(r"(?P<thread>\d+)\s+(?:(?P<name>\w+)\(|<\.\.\. (?P<resumed>\w+) resumed>)(?P<rest>.*)")
_UNFINISHED = "<unfinished ...>"
_DESCRIPTOR = re.compile(r"\d+<(TCP\w*:\[[^\]]*\]|[^>]*)>")
_PATH = re.compile(r'"([^"]*)"')
_CLIENT = re.compile(r"TCP\w*:\[\S+->([^\]]+)\]")


class Call(NamedTuple):
    """A call that succeeded. `begin` and `end` are numbers of lines."""

    name: str
    arguments: str
    begin: int
    end: int

    @property
    def target(self) -> str:
        """What the descriptor that comes first stands for."""
        found = _DESCRIPTOR.match(self.arguments)
        return found[1] if found else ""

    @property
    def client(self) -> str:
        """HOST:PORT at the other end of the connection that is written to; empty when it is none."""
        found = _CLIENT.match(self.target) if self.name in SENDS else None
        return found[1] if found else ""

    @property
    def path(self) -> str:
        """The last path that is spelled out."""
        return _PATH.findall(self.arguments)[-1]


class Need(NamedTuple):
    """Something that is lost in a power cut until `path` is synced; `directory` is the partition that it belongs to."""

    path: str
    directory: str
    call: Call


def read_calls(lines: Iterable[str]) -> list[Call]:
    """The calls of a trace, in the order in which they ended; those that failed, or never ended, are left out."""
    calls: list[Call] = []
    under_way: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines, 1):
        found = _LINE.match(line)
        if found is None:
            continue
        thread, rest = found["thread"], found["rest"]
        if found["name"] and rest.endswith(_UNFINISHED):
            under_way[thread] = (rest.removesuffix(_UNFINISHED), number)
            continue
        arguments, begin = under_way.pop(thread) if found["resumed"] else ("", number)
        arguments, _, result = (arguments + rest).rpartition(" = ")
        if not result.startswith(("-", "?")):
            calls.append(Call(found["name"] or found["resumed"], arguments, begin, number))
    return calls


def early_answers(calls: Collection[Call], partitions_of: Mapping[str, Collection[str]]) -> list[str]:
    """The answers that were sent although something of their partitions was not on disk, in words; empty if none was.

    `partitions_of` says which partitions' directories a client (HOST:PORT) writes to. A client must have one request
    under way at a time, and nobody else may write to the same partition. Before its first record nothing is asked for.
    """
    needs = [need for call in calls for need in _needs(call)]
    syncs = [call for call in calls if call.name in SYNCS]
    findings = []
    for answer in calls:
        if answer.client not in partitions_of:
            continue
        earlier = [need for need in needs if need.call.begin < answer.begin]
        written = {need.directory for need in earlier if need.call.name in WRITES}
        for need in earlier:
            if need.directory not in written.intersection(partitions_of[answer.client]):
                continue
            if not any(_covers(sync, need) and sync.end < answer.begin for sync in syncs):
                findings.append(
                    f"line {answer.begin}: {answer.client} is answered, but {need.path} was not synced after "
                    f"{need.call.name} in line {need.call.begin}"
                )
    return findings


def _needs(call: Call) -> list[Need]:
    """What `call` has changed that an acknowledged record depends on."""
    if call.name in WRITES and call.target.endswith(".log"):
        return [Need(call.target, _parent(call.target), call)]
    if call.name == "openat" and "O_CREAT" in call.arguments and call.path.endswith(".log"):
        return [Need(_parent(call.path), _parent(call.path), call)]
    if call.name == "rename":
        return [Need(_parent(call.path), _parent(call.path), call)]
    if call.name == "mkdir":
        return [Need(_parent(call.path), call.path, call)]
    return []


def _covers(sync: Call, need: Need) -> bool:
    """Whether `sync` began when what is needed had been done, and is about it.

    A syncfs is about what lies below the directory that it was called for: another one may be on another disk.
    """
    if sync.begin <= need.call.end:
        return False
    if sync.name == "syncfs":
        return PurePosixPath(need.path).is_relative_to(sync.target)
    return sync.target == need.path


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def can_trace() -> bool:
    strace = shutil.which("strace")
    return (
        strace is not None and subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True).returncode == 0
    )


class FlushTracedBroker(BrokerProcess):
    """A broker whose system calls go to the file `trace`; it is complete once the broker has ended."""

    trace = Path("trace")

    @property
    def arguments(self) -> list[str]:
        traced = ",".join((*NAMES, *WRITES, *SYNCS, *SENDS))
        options = ["-D", "-f", "-yy", "-s", "0", "-e", f"trace={traced}", "-o", str(self.trace)]
        return ["strace", *options, *super().arguments]

    def calls(self) -> list[Call]:
        """The calls so far."""
        return read_calls(self.trace.read_text().splitlines())
