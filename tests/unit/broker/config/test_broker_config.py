"""The broker's settings: from text to values, where they come from, and what is refused."""

import logging
import re
from pathlib import Path

import pytest

from settings_page import ABOUT_VALUES, describe_settings
from unit.broker.data_directories import open_directory
from warmlog_broker.config.broker_config import BROKER_SETTINGS, HIDDEN, BrokerConfig, Given, Origin, shown
from warmlog_broker.config.log_levels import logger_names, parse_log_level
from warmlog_broker.config.sources import _KUBERNETES, Mistake, _variable, load_settings, mistakes_of, read_file
from warmlog_broker.storage.config import TOPIC_SETTINGS
from warmlog_broker.storage.directory.properties import DataDirectoryError
from warmlog_protocol.errors import InvalidConfig

DIRECTORY = {"data.dir": "/data"}


def test_defaults_come_from_the_table() -> None:
    config = BrokerConfig.from_settings(DIRECTORY)
    settings = config.to_settings()
    for setting in BROKER_SETTINGS:
        if setting.name != "data.dir":
            assert settings[setting.name] == setting.format(setting.default)


def test_a_value_is_parsed_and_written_back_as_given() -> None:
    config = BrokerConfig.from_settings({**DIRECTORY, "flush.threads": "7", "fetch.sendfile.enable": "false"})
    assert config.flush_threads == 7
    assert config.fetch_sendfile_enable is False
    assert config.to_settings()["flush.threads"] == "7"
    assert config.to_settings()["fetch.sendfile.enable"] == "false"


def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean max\.connections"):
        BrokerConfig.from_settings({**DIRECTORY, "max.conections": "1"})
    with pytest.raises(InvalidConfig, match=r"did you mean retention\.ms"):
        BrokerConfig.from_settings({**DIRECTORY, "retention.mss": "1"})


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "99999999999999999999"])
def test_a_value_out_of_bounds_is_refused_naming_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"flush\.threads.*from 1 to 256"):
        BrokerConfig.from_settings({**DIRECTORY, "flush.threads": text})


def test_a_topic_setting_given_to_the_broker_is_the_default_of_topics() -> None:
    config = BrokerConfig.from_settings({**DIRECTORY, "flush.ms": "5", "write.caching": "true"})
    assert config.topic_defaults.flush_ms == 5
    assert config.topic_defaults.write_caching is True
    with pytest.raises(InvalidConfig, match=r"flush\.ms"):
        BrokerConfig.from_settings({**DIRECTORY, "flush.ms": "soon"})


def test_a_broker_without_a_data_directory_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"data\.dir"):
        BrokerConfig.from_settings({})


def test_several_data_directories_are_a_list_and_one_is_the_short_form() -> None:
    assert BrokerConfig.from_settings({"data.dir": "/a,b"}).data_paths == (Path("/a,b"),)
    assert BrokerConfig.from_settings({"data.dirs": "/a, /b/,"}).data_paths == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data.dir": "/a", "data.dirs": "/a,/b"}, "both set: remove one of them"),
        ({"data.dirs": " , "}, "is not set"),
        ({"data.dirs": "/a,/b/../a"}, "/a is given twice"),
        ({"data.dirs": "/a,/a/b"}, "one of /a/b and /a is inside the other"),
    ],
)
def test_data_directories_that_make_no_sense_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        BrokerConfig.from_settings(settings)


@pytest.mark.parametrize("text", ["/a\0b", "\0", "/\udc80", "127.0.0.1\0x:7400"])
@pytest.mark.parametrize("name", [setting.name for setting in (*BROKER_SETTINGS, *TOPIC_SETTINGS)])
def test_a_zero_byte_and_what_is_not_utf_8_are_refused_in_every_setting_by_its_name(name: str, text: str) -> None:
    others = {} if name.startswith("data.dir") else DIRECTORY
    with pytest.raises(InvalidConfig, match=f"^{re.escape(name)}: .*must be"):
        BrokerConfig.from_settings({**others, name: text})


def test_links_in_a_circle_are_left_to_the_start_which_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    config = BrokerConfig.from_settings({"data.dirs": f"{tmp_path}/circle,{tmp_path}/a"})
    with pytest.raises(DataDirectoryError, match=f"data directory {tmp_path}/circle cannot be used"):
        open_directory(config.data_paths[0])


def test_settings_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"queued\.max\.request\.bytes"):
        BrokerConfig.from_settings({**DIRECTORY, "queued.max.request.bytes": "70000"})
    with pytest.raises(InvalidConfig, match=r"num\.partitions"):
        BrokerConfig.from_settings({**DIRECTORY, "num.partitions": "5", "max.partitions.per.topic": "4"})


CLUSTER = {
    "cluster.etcd": "etcd:2379",
    "cluster.id": "c",
    "cluster.secret.file": "/secret",
    "cluster.listener": "brokers",
    "cluster.etcd.user": "warmlog",
    "cluster.etcd.password.file": "/password",
    "cluster.etcd.ca.file": "/ca.pem",
    "cluster.etcd.cert.file": "/cert.pem",
    "cluster.etcd.key.file": "/key.pem",
}


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        *((name, "cluster.etcd") for name in CLUSTER if name != "cluster.etcd"),
        ("cluster.etcd.password.file", "cluster.etcd.user"),
        ("cluster.etcd.key.file", "cluster.etcd.cert.file"),
        ("cluster.etcd.cert.file", "cluster.etcd.ca.file"),
    ],
)
def test_a_setting_of_a_cluster_that_would_have_no_effect_is_refused_with_what_it_needs(name: str, needed: str) -> None:
    whole = {**DIRECTORY, "listeners": "brokers=plaintext://127.0.0.1:0", **CLUSTER}
    BrokerConfig.from_settings(whole)
    own = {name: CLUSTER[name]} if needed == "cluster.etcd" else CLUSTER
    settings = {key: text for key, text in whole.items() if key not in CLUSTER or (key in own and key != needed)}
    with pytest.raises(InvalidConfig, match=f"^{name} has no effect without {needed}, which is not set"):
        BrokerConfig.from_settings(settings)


def test_the_command_line_is_stronger_than_the_environment_and_that_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        '"data.dir" = "/from-file"\nlisten = "127.0.0.1:1"\nflush.threads = 2\n[fetch]\nsendfile.enable = false\n'
    )
    environment = {"WARMLOG_LISTEN": "127.0.0.1:2", "WARMLOG_FLUSH_THREADS": "3", "WARMLOG_BROKER": "x:1", "HOME": "/"}
    config = load_settings({"flush.threads": "4"}, file=file, environment=environment)
    assert config.data_dir == "/from-file"
    assert config.listen == "127.0.0.1:2"
    assert config.flush_threads == 4
    assert config.fetch_sendfile_enable is False


def test_an_unknown_environment_variable_of_ours_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="WARMLOG_FLUSH_THREADS"):
        load_settings(DIRECTORY, environment={"WARMLOG_FLUSH_THREAD": "3"})


@pytest.mark.parametrize("variable", ["WARMLOG_FLUSH_TREADS", "WARMLOG_DATADIR", "WARMLOG_RETENTION_MSEC"])
def test_a_misspelled_environment_variable_is_refused_with_the_right_one(variable: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{variable} is not a setting; did you mean WARMLOG_"):
        load_settings(DIRECTORY, environment={variable: "3"})


KUBERNETES = [
    f"WARMLOG{service}_{rest}"
    for service in ("", "_BROKER", "_FLUSH_THREADS")
    for rest in (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_CLIENTS",
        "PORT",
        "PORT_7400_TCP",
        "PORT_7400_TCP_ADDR",
        "PORT_7400_TCP_PORT",
        "PORT_7400_TCP_PROTO",
    )
]


def test_variables_that_kubernetes_and_others_set_are_ignored_and_named() -> None:
    foreign = [*KUBERNETES, "WARMLOG_HOME", "WARMLOG_VERSION"]
    config = load_settings(DIRECTORY, environment={**dict.fromkeys(foreign, "10.0.0.1"), "WARMLOG_FLUSH_THREADS": "3"})
    assert config.ignored_variables == tuple(sorted(foreign))
    assert config.flush_threads == 3


def test_no_setting_has_a_variable_that_kubernetes_sets() -> None:
    names = [setting.name for setting in (*BROKER_SETTINGS, *TOPIC_SETTINGS)]
    assert not [name for name in names if _KUBERNETES.fullmatch(_variable(name))]


def test_changed_settings_are_those_that_differ_from_their_defaults() -> None:
    config = BrokerConfig.from_settings({"data.dir": "/x", "flush.threads": "7", "retention.ms": "1000"})
    assert config.changed_settings() == {"data.dir": "/x", "flush.threads": "7", "retention.ms": "1000"}


@pytest.mark.parametrize("content", ["flush.threads = 1.5", "flush.threads = [1]", "not toml", "\xff"])
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidConfig):
        load_settings(DIRECTORY, file=file, environment={})


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"missing\.toml"):
        load_settings(DIRECTORY, file=Path("/nowhere/missing.toml"), environment={})
    with pytest.raises(InvalidConfig, match="cannot read the configuration"):
        load_settings(DIRECTORY, file=Path("zero\0byte.toml"), environment={})


def test_the_documentation_has_a_heading_for_each_setting() -> None:
    text = describe_settings(BROKER_SETTINGS)
    for setting in BROKER_SETTINGS:
        assert f"### `{setting.name}`\n" in text


# The mistakes of a file, and where settings come from


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


def test_a_level_is_for_the_whole_broker_or_for_a_part() -> None:
    assert parse_log_level("Warning") == {"": logging.WARNING}
    levels = parse_log_level("info, network = debug,storage=error")
    assert levels == {"": logging.INFO, "network": logging.DEBUG, "storage": logging.ERROR}
    assert logger_names()["network"] == "warmlog_broker.network"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("loud", "'loud' is not a level, it must be debug or info or warning or error or critical"),
        ("", "'' is not a level"),
        ("info,netwrk=debug", "'netwrk' is not a part of the broker; did you mean network?"),
        ("info,x=debug", "'x' is not a part of the broker; the parts are cluster, config, coordinator, "),
        ("network=debug", "has no level for the whole broker, such as info,network=debug"),
        ("info,debug", "has two levels for the whole broker"),
        ("info,network=debug,network=info", "has two levels for network"),
    ],
)
def test_levels_that_cannot_be_are_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(named)):
        BrokerConfig.from_settings({"data.dir": "data", "log.level": text})


PAGE = Path(__file__).parents[4] / "docs" / "settings.md"


def test_the_page_says_what_the_tables_say() -> None:
    broker, topic = describe_settings(BROKER_SETTINGS), describe_settings(TOPIC_SETTINGS)
    assert PAGE.read_text() == f"# Settings\n\n{ABOUT_VALUES}\n## Of the broker\n\n{broker}\n## Of a topic\n\n{topic}"
