"""The mistakes of a file, and where settings come from."""

from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import HIDDEN, Given, Origin, shown
from warmlog_broker.config.sources import Mistake, load_settings, mistakes_of, read_file
from warmlog_protocol.errors import InvalidConfig


def mistakes(tmp_path: Path, text: str) -> list[Mistake]:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return mistakes_of(read_file(file))


def test_all_mistakes_of_single_settings_are_shown_with_value_range_and_nearest_name(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        "# a broker\n"
        "flush.threads = 0\n"
        "flsh.threads = 4\n"
        "[retention]\n"
        'ms = "soon"\n'
        "[tls.client]\n"
        'auth = "required"\n'
        "[sasl]\n"
        'password = "hunter2"\n',
    )
    assert [each.name for each in found] == ["flush.threads", "flsh.threads", "retention.ms", "sasl.password"]
    threads, misspelled = found[:2]
    assert (threads.value, threads.allowed) == ("0", "a whole number from 1 to 256")
    assert "a whole number from 1 to 256" in threads.message
    assert misspelled.nearest == "flush.threads"
    assert "did you mean flush.threads?" in misspelled.message
    assert found[3].value == HIDDEN
    assert "hunter2" not in repr(found)


def test_without_other_mistakes_the_first_contradiction_is_shown(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, 'tls.client.auth = "required"\n')
    assert "needs tls.ca.file" in found.message
    (found,) = mistakes(tmp_path, "min.compaction.lag.ms = 10\nmax.compaction.lag.ms = 5\n")
    assert "max.compaction.lag.ms" in found.message
    (found,) = mistakes(tmp_path, 'listen = "[::1"\n')
    assert found.message.startswith("listen: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flush.threads = 2\nthis is no setting\n", "line 2"),
        ("flush.threads = 2\n[flush]\nthreads = 3\n", "line"),
        ("[[flush]]\nthreads = 2\n", "flush: .* is not allowed"),
        ("[num]\npartitions = 1.5\n", "num.partitions: 1.5 is not allowed, it must be text, a whole number"),
    ],
)
def test_a_file_that_is_no_toml_or_has_no_settings_is_refused_with_its_name_and_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        mistakes(tmp_path, text)
    assert str(tmp_path / "broker.toml") in str(refused.value)


def test_a_good_file_has_no_mistakes_and_need_not_say_where_the_data_is(tmp_path: Path) -> None:
    assert not mistakes(tmp_path, 'listen = "127.0.0.1:0"\r\n[flush]\r\nthreads = 2 # two\r\n')
    assert not mistakes(tmp_path, "")
    assert not mistakes(tmp_path, "tls.max.handshakes = 7 # of version 0.1\n")


def test_a_start_names_the_place_of_a_wrong_setting(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("flush.threads = 0\n")
    with pytest.raises(InvalidConfig, match=f"^{file}: flush.threads: '0' is not allowed"):
        load_settings({"data.dir": "/d"}, file=file, environment={})
    with pytest.raises(InvalidConfig, match=r"^WARMLOG_NUM_PARTITIONS: num\.partitions: "):
        load_settings({"data.dir": "/d"}, environment={"WARMLOG_NUM_PARTITIONS": "0"})


def test_a_setting_that_is_gone_has_no_effect_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[stall]\ntimeout.ms = 5\n")
    config = load_settings({"data.dir": "/d"}, file=file, environment={"WARMLOG_FETCH_MAX_WAITS": "many"})
    assert config.retired == ("stall.timeout.ms", "fetch.max.waits")
    assert not config.given.keys() & set(config.retired)


def test_each_setting_knows_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('"data.dir" = "/d"\n\nflush.threads = 2\nnum.partitions = 3\n')
    config = load_settings(
        {"num.partitions": "5"}, file=file, environment={"WARMLOG_FETCH_MAX_BYTES": "1MiB", "HOME": "/"}
    )
    sources = config.sources()
    assert sources["flush.threads"] == Given("2", Origin.FILE, str(file))
    assert sources["fetch.max.bytes"] == Given("1MiB", Origin.ENVIRONMENT, "WARMLOG_FETCH_MAX_BYTES")
    assert sources["num.partitions"] == Given("5", Origin.FLAG)
    assert sources["node.id"].origin is Origin.DEFAULT


@pytest.mark.parametrize("name", ["sasl.password", "ADMIN_TOKEN", "tls.key.secret"])
def test_a_value_whose_name_says_that_it_is_a_secret_is_hidden(name: str) -> None:
    assert shown(name, "hunter2") == HIDDEN
    assert shown("tls.key.password.file", "/etc/key") == "/etc/key"
