"""Kafka's Java clients, an old and a new version: codecs, every kind of group, transactions, administration."""

import pytest

from clients import programs
from clients.java import program as java_program
from clients.programs import COUNT, Program, numbered
from clients.served import CODECS, Served

CLIENT = "Java clients 3.9.2 and 4.4.0"


@pytest.fixture(scope="module", params=["old", "new"])
def program(request: pytest.FixtureRequest) -> Program:
    return java_program(request.param, f"clients-{request.param}", "Clients")


@pytest.mark.parametrize("codec", CODECS)
def test_writes_and_reads_every_codec(program: Program, served: Served, codec: str) -> None:
    programs.check_codec(program, served, codec)


@pytest.mark.parametrize("task", ["consume", "consume-cooperative", "consume-static", "consume-consumer"])
def test_groups(program: Program, served: Served, task: str) -> None:
    programs.check_group(program, served, task)


def test_transactions(program: Program, served: Served) -> None:
    programs.check_transactions(program, served)


def test_copies_with_offsets_in_the_transaction(program: Program, served: Served) -> None:
    source, target = f"{program.name}-from", f"{program.name}-to"
    served.create(source, partitions=1)
    served.create(target, partitions=1)
    program.run(served, "produce", source, "none", COUNT)
    program.run(served, "copy", source, target, f"{source}-group", COUNT)
    assert program.run(served, "consume", target, f"{target}-group", COUNT) == numbered()
    assert len(served.read(target)) == COUNT


def test_admin(program: Program, served: Served) -> None:
    programs.check_admin(program, served)
