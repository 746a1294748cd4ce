"""Two Node clients."""

import pytest

from clients import fetched, programs
from clients.programs import Program
from clients.served import CODECS, Served

CLIENT = "KafkaJS 2.2.4 and @platformatic/kafka 2.12.1 (Node)"


@pytest.fixture(scope="module", params=["kafkajs", "platformatic"])
def program(request: pytest.FixtureRequest) -> Program:
    directory = fetched.node_directory()
    return Program(request.param, [directory / "node_modules" / ".bin" / "node", f"{request.param}.js"], directory)


@pytest.mark.parametrize("codec", CODECS)
def test_writes_and_reads_every_codec(program: Program, served: Served, codec: str) -> None:
    programs.check_codec(program, served, codec)


def test_groups(program: Program, served: Served) -> None:
    programs.check_group(program, served)


def test_groups_of_the_new_protocol(program: Program, served: Served) -> None:
    if program.name == "kafkajs":
        pytest.skip("KafkaJS has no KIP-848")
    programs.check_group(program, served, "consume-consumer")


def test_transactions(program: Program, served: Served) -> None:
    programs.check_transactions(program, served)


def test_admin(program: Program, served: Served) -> None:
    programs.check_admin(program, served)
