"""`warmlog produce` and `warmlog consume` against a real broker."""

import json
import signal
import time

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine, error_line, succeeded


@pytest.fixture
def topic(warmlog: CommandLine, request: pytest.FixtureRequest) -> str:
    """A topic of one partition for this test."""
    name = f"t{abs(hash(request.node.nodeid))}"
    succeeded(warmlog("topic", "create", name))
    return name


def consumed(warmlog: CommandLine, topic: str, *arguments: object) -> bytes:
    return succeeded(warmlog("consume", topic, "--to", "latest", *arguments))


def test_lines_come_back_as_they_were_sent(warmlog: CommandLine, topic: str) -> None:
    lines = b"first\n\n\xff\x00 binary\r\nno newline at the end"
    produced = warmlog("produce", topic, given=lines)
    assert succeeded(produced) == b""
    assert b"4 records" in produced.stderr
    assert consumed(warmlog, topic) == lines + b"\n"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_lines_come_back_in_order_with_every_compression(
    warmlog: CommandLine, topic: str, compression: str
) -> None:
    lines = b"".join(b"%d,some text that repeats itself\n" % number for number in range(50_000))
    succeeded(warmlog("produce", topic, "--compression", compression, given=lines))
    assert consumed(warmlog, topic) == lines


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_kind_of_acknowledgement_delivers(warmlog: CommandLine, topic: str, acks: str) -> None:
    succeeded(warmlog("produce", topic, "--acks", acks, given=b"a\nb\n"))
    deadline = time.monotonic() + 10
    while consumed(warmlog, topic) != b"a\nb\n" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert consumed(warmlog, topic) == b"a\nb\n"


def test_no_input_is_no_record(warmlog: CommandLine, topic: str) -> None:
    produced = warmlog("produce", topic)
    assert succeeded(produced) == b""
    assert b"0 records" in produced.stderr
    assert consumed(warmlog, topic) == b""


def test_the_summary_is_json_for_scripts(warmlog: CommandLine, topic: str) -> None:
    summary = json.loads(succeeded(warmlog("produce", topic, "--json", given=b"ab\ncd\n")))
    assert (summary["topic"], summary["records"], summary["bytes"], summary["acks"]) == (topic, 2, 4, "all")
    assert summary["records_per_s"] > 0


def test_keys_are_parted_from_values_and_choose_the_partition(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "keyed", "--partitions", "4"))
    succeeded(warmlog("produce", "keyed", "--key-separator", "\\t", given=b"UA\tone\nAA\ttwo\nUA\tthree\ttabs\n"))
    lines = consumed(warmlog, "keyed", "--format", "%p %k %v").splitlines()
    partition_of = {line.split()[1]: line.split()[0] for line in lines}
    united = [line for line in lines if b" UA " in line]
    assert united == [partition_of[b"UA"] + b" UA one", partition_of[b"UA"] + b" UA three\ttabs"]


def test_a_line_without_its_key_stops_with_what_was_acknowledged(warmlog: CommandLine, topic: str) -> None:
    line = error_line(warmlog("produce", topic, "--key-separator", ":", given=b"a:b\nab\n"))
    assert "line 2 has no separator" in line
    assert "0 records were acknowledged" in line


def test_a_record_over_the_limit_stops_with_what_was_acknowledged(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "narrow", "--config", "max.message.bytes=1000"))
    line = error_line(warmlog("produce", "narrow", given=b"x" * 2000 + b"\n"))
    assert "max.message.bytes=1000" in line
    assert "0 records were acknowledged" in line


def test_an_unknown_topic_or_partition_is_told(warmlog: CommandLine, topic: str) -> None:
    assert "nowhere" in error_line(warmlog("produce", "nowhere", given=b"a\n"))
    assert "nowhere" in error_line(warmlog("consume", "nowhere", "--to", "latest"))
    assert "partition" in error_line(warmlog("produce", topic, "--partition", "7", given=b"a\n"))
    assert "partition" in error_line(warmlog("consume", topic, "--partition", "7", "--to", "latest"))


def test_places_and_counts_choose_what_is_printed(warmlog: CommandLine, topic: str) -> None:
    succeeded(warmlog("produce", topic, given=b"0\n1\n2\n3\n4\n"))
    assert consumed(warmlog, topic, "--from", "3") == b"3\n4\n"
    assert consumed(warmlog, topic, "--from", "latest") == b""
    assert consumed(warmlog, topic, "--from", "2013-07-01T00:00", "--count", "2") == b"0\n1\n"
    assert consumed(warmlog, topic, "--from", "2199-01-01") == b""
    assert succeeded(warmlog("consume", topic, "--from", "1", "--to", "4")) == b"1\n2\n3\n"
    assert succeeded(warmlog("consume", topic, "--to", "2013-07-01")) == b""
    assert succeeded(warmlog("consume", topic, "--from", "2", "--count", "1")) == b"2\n"
    assert "9" in error_line(warmlog("consume", topic, "--from", "9", "--to", "latest"))


def test_one_partition_can_be_asked_for(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "parted", "--partitions", "2"))
    succeeded(warmlog("produce", "parted", "--partition", "0", given=b"zero\n"))
    succeeded(warmlog("produce", "parted", "--partition", "1", given=b"one\n"))
    assert consumed(warmlog, "parted", "--partition", "1") == b"one\n"
    assert sorted(consumed(warmlog, "parted").splitlines()) == [b"one", b"zero"]


def test_json_is_the_format_json(warmlog: CommandLine, topic: str) -> None:
    succeeded(warmlog("produce", topic, "--key-separator", "=", given=b"k=v\nother=\xff\n"))
    lines = consumed(warmlog, topic, "--format", "json")
    assert consumed(warmlog, topic, "--json") == lines
    first, second = map(json.loads, lines.splitlines())
    assert (first["topic"], first["partition"], first["offset"]) == (topic, 0, 0)
    assert (first["key"], first["value"]) == ("k", "v")
    assert (second["key"], second["value"], second["value_encoding"]) == ("other", "/w==", "base64")
    assert first["timestamp_ms"] > 1_600_000_000_000


def test_without_an_end_records_are_printed_as_they_come(warmlog: CommandLine, topic: str) -> None:
    consumer = warmlog.start("consume", topic, "--format", "%o %v", "--count", "2")
    assert consumer.stdout is not None
    succeeded(warmlog("produce", topic, given=b"early\n"))
    assert consumer.stdout.readline() == b"0 early\n"
    succeeded(warmlog("produce", topic, given=b"late\nlater\n"))
    stdout, _ = consumer.communicate(timeout=30)
    assert (consumer.returncode, stdout) == (0, b"1 late\n")


def test_a_killed_broker_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("killed")) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "survivor"))
        producer = warmlog.start("produce", "survivor")
        assert producer.stdin is not None
        producer.stdin.write(b"before\n")
        producer.stdin.flush()
        assert succeeded(warmlog("consume", "survivor", "--count", "1")) == b"before\n"
        broker.kill()
        producer.stdin.write(b"while it is down\n")
        producer.stdin.flush()
        time.sleep(0.3)
        broker.start()
        _, stderr = producer.communicate(b"after\n", timeout=60)
        assert producer.returncode == 0, stderr.decode()
        assert consumed(warmlog, "survivor") == b"before\nwhile it is down\nafter\n"


def test_ctrl_c_does_not_wait_for_a_broker_that_is_gone(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("gone")) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "lost"))
        producer, consumer = warmlog.start("produce", "lost"), warmlog.start("consume", "lost")
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write(b"before\n")
        producer.stdin.flush()
        assert consumer.stdout.readline() == b"before\n"
        broker.kill()
        producer.stdin.write(b"never sent\n")
        producer.stdin.flush()
        for process in (producer, consumer):
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=10)
            assert process.returncode == 130
            assert b"Traceback" not in stderr
