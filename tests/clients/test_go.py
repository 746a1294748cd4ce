"""Two Go clients: franz-go, with transactions of version 2, and sarama, which repeats the calls of an exporter, too."""

import pytest

from clients import fetched, programs
from clients.programs import Program
from clients.served import CODECS, Served

CLIENT = "franz-go 1.22.3 and sarama 1.61.1 (Go)"


@pytest.fixture(scope="module", params=["franz", "sarama"])
def program(request: pytest.FixtureRequest) -> Program:
    return Program(request.param, [fetched.go_program(request.param)], fetched.BUILD)


@pytest.mark.parametrize("codec", CODECS)
def test_writes_and_reads_every_codec(program: Program, served: Served, codec: str) -> None:
    programs.check_codec(program, served, codec)


def test_groups(program: Program, served: Served) -> None:
    programs.check_group(program, served)


def test_transactions(program: Program, served: Served) -> None:
    programs.check_transactions(program, served)


def test_admin(program: Program, served: Served) -> None:
    programs.check_admin(program, served)


def test_the_calls_of_an_exporter_of_metrics(served: Served) -> None:
    program = Program("sarama", [fetched.go_program("sarama")], fetched.BUILD)
    served.create("exported", partitions=2)
    served.write("exported", b"one", b"two", b"three")
    program.run(served, "consume", "exported", "exported-group", 3)
    served.write("exported", b"four")
    said = program.run(served, "export")
    ends = [line.split() for line in said if line.startswith("partition exported ")]
    assert sum(int(newest) for _, _, _, _, newest, _, _ in ends) == 4
    assert [line[3:4] + line[5:] for line in ends] == 2 * [["0", "true", "1"]]
    assert "group exported-group 0 true 1" in said, "one record is not committed"
