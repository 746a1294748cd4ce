"""All mistakes of a file at once, and where settings come from."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog_broker.config.checking import Mistake, mistakes_of_file
from warmlog_broker.config.given import HIDDEN, Given, Origin, shown
from warmlog_broker.config.sources import load_settings
from warmlog_broker.config.toml_file import Assignment, statements


def mistakes(tmp_path: Path, text: str) -> list[Mistake]:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return mistakes_of_file(file)


def test_all_mistakes_of_a_file_are_told_with_line_value_range_and_nearest_name(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        "# a broker\n"
        "flush.threads = 0\n"
        "flsh.threads = 4\n"
        "this is no setting\n"
        "[num]\n"
        "partitions = 1.5\n"
        "[retention]\n"
        'ms = "soon"\n'
        "[tls.client]\n"
        'auth = "required"\n'
        "[sasl]\n"
        'password = "hunter2"\n',
    )
    assert [(each.line, each.name) for each in found] == [
        (2, "flush.threads"),
        (3, "flsh.threads"),
        (4, ""),
        (6, "num.partitions"),
        (8, "retention.ms"),
        (10, "tls.client.auth"),
        (12, "sasl.password"),
    ]
    threads, misspelled = found[:2]
    assert (threads.value, threads.allowed) == ("0", "a whole number from 1 to 256")
    assert "a whole number from 1 to 256" in threads.message
    assert misspelled.nearest == "flush.threads"
    assert "did you mean flush.threads?" in misspelled.message
    assert "not TOML" in found[2].message
    assert "needs tls.ca.file" in found[5].message
    assert found[6].value == HIDDEN
    assert "hunter2" not in repr(found)


def test_contradictions_are_told_all(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        'listen = "0.0.0.0:7400"\nsuper.users = "root"\nqueued.max.request.bytes = 70000\n'
        "min.compaction.lag.ms = 10\nmax.compaction.lag.ms = 5\n",
    )
    assert [each.line for each in found] == [1, 2, 3, 4]
    assert "allow.unauthenticated" in found[0].message


def test_wrong_listeners_hide_no_mistake_of_another_setting(tmp_path: Path) -> None:
    found = mistakes(tmp_path, 'listeners = "a"\nadmin.listen = "9464"\ntls.client.auth = "required"\n')
    assert [each.name for each in found] == ["listeners", "admin.listen", "tls.client.auth"]


def test_a_wrong_value_makes_no_mistake_of_another_setting(tmp_path: Path) -> None:
    (found,) = mistakes(
        tmp_path,
        'listeners = "a=ssl://127.0.0.1:0"\ntls.cert.file = "c"\ntls.ca.file = "d"\ntls.client.auth = "maybe"\n',
    )
    assert found.name == "tls.client.auth"


def test_a_wrong_address_is_told_once(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, 'listen = "[::1"\n')
    assert found.name == "listen"


def test_a_setting_that_is_given_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, "flush.threads = 2\n[flush]\nthreads = 3\n")
    assert found.line == 3
    assert "in line 1 already" in found.message
    (table,) = mistakes(tmp_path, "[flush]\nthreads = 2\n[flush]\nsyncfs.files = 3\n")
    assert "not TOML" in table.message


def test_a_list_of_tables_is_a_mistake(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "[[flush]]\nthreads = 2\n")


def test_a_good_file_has_no_mistakes_and_need_not_say_where_the_data_is(tmp_path: Path) -> None:
    assert not mistakes(tmp_path, 'listen = "127.0.0.1:0"\r\n[flush]\r\nthreads = 2 # two\r\n')
    assert not mistakes(tmp_path, "")


NAMES = st.sampled_from(["a", "b", "c.d", '"e.f"', '"#"'])
VALUES = st.sampled_from(
    ["1", "true", '"x = 1"', "'''\n[a]\nb = 2\n'''", '"""\\\n  x"""', '"#" # c', "{x = 1}", "0x1f"]
)
LINES = st.one_of(
    st.tuples(NAMES, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    st.sampled_from(["", "# comment", "[t]", "[t.u] # c", "  [v]", "wrong", "[[w]]"]),
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=8))
def test_what_has_no_mistakes_means_the_same_as_to_tomllib(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = list(statements(text))
    assigned = {each.name: each.text for each in found if isinstance(each, Assignment)}
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert len(assigned) < len(found)
    else:
        if len(found) == len(assigned):
            assert assigned == flat("", tables)


def flat(prefix: str, table: dict[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= flat(f"{prefix}{name}.", value)
        else:
            found[prefix + name] = "true" if value is True else str(value)
    return found


def test_each_setting_knows_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('"data.dir" = "/d"\n\nflush.threads = 2\nnum.partitions = 3\n')
    config = load_settings(
        {"num.partitions": "5"}, file=file, environment={"WARMLOG_FETCH_MAX_BYTES": "1MiB", "HOME": "/"}
    )
    sources = config.sources()
    assert sources["flush.threads"] == Given("2", Origin.FILE, f"{file}, line 3", 3)
    assert sources["fetch.max.bytes"] == Given("1MiB", Origin.ENVIRONMENT, "WARMLOG_FETCH_MAX_BYTES")
    assert sources["num.partitions"] == Given("5", Origin.FLAG)
    assert sources["node.id"].origin is Origin.DEFAULT


@pytest.mark.parametrize("name", ["sasl.password", "ADMIN_TOKEN", "tls.key.secret"])
def test_a_value_whose_name_says_that_it_is_a_secret_is_hidden(name: str) -> None:
    assert shown(name, "hunter2") == HIDDEN
    assert shown("tls.key.password.file", "/etc/key") == "/etc/key"
