"""The package as a whole: its errors in other processes, its lazy names, and the extras that hints name."""

import copy
import pickle
import re
import shlex
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

import warmlog
import warmlog.errors
from warmlog.extras import install_hint

ERRORS = sorted(
    {
        item
        for module in (warmlog, warmlog.errors)
        for name in module.__all__
        if isinstance(item := getattr(module, name), type) and issubclass(item, BaseException)
    },
    key=lambda kind: kind.__name__,
)


def example(kind: type[BaseException]) -> BaseException:
    if kind is warmlog.UnreadableBatch:
        return warmlog.UnreadableBatch("CRC mismatch", topic="t", partition=3, base_offset=10, next_offset=20)
    if kind is warmlog.LogTruncated:
        return warmlog.LogTruncated("t", 3, 20, 12)
    if kind is warmlog.MembershipLost:
        return warmlog.MembershipLost(
            "etl", datetime(2026, 11, 20, 8, tzinfo=UTC), "expired", {("t", 3): range(10, 20)}
        )
    return kind("what went wrong")


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_public_error_survives_pickling(kind: type[BaseException], protocol: int) -> None:
    error = example(kind)
    for received in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(received) is kind
        assert (str(received), received.args) == (str(error), error.args)
        assert vars(received) == vars(error)


def test_an_error_with_another_message_keeps_its_fields_also_when_it_is_pickled() -> None:
    for kind in (warmlog.UnreadableBatch, warmlog.LogTruncated):
        error = example(kind)
        assert isinstance(error, (warmlog.UnreadableBatch, warmlog.LogTruncated))
        other = pickle.loads(pickle.dumps(error.reworded("in other words")))
        assert type(other) is kind
        assert str(other) == "in other words"
        assert vars(other) == vars(error)


def test_notes_on_an_error_and_on_the_same_with_another_message_stay_apart() -> None:
    for kind in (warmlog.UnreadableBatch, warmlog.LogTruncated):
        error = example(kind)
        assert isinstance(error, (warmlog.UnreadableBatch, warmlog.LogTruncated))
        error.add_note("about the first")
        other = error.reworded("in other words")
        other.add_note("about the second")
        assert error.__notes__ == ["about the first"]
        assert other.__notes__ == ["about the second"]


def test_a_lost_membership_says_since_when_and_what_is_handled_again() -> None:
    since = datetime(2026, 11, 20, 8, tzinfo=UTC)
    error = warmlog.MembershipLost(
        "etl", since, "its session expired", {("t", 3): range(10, 20), ("t", 1): range(7, 7)}
    )
    assert str(error) == (
        "no longer a member of group 'etl', of which it last heard at 2026-11-20 08:00:00 UTC: its session expired; "
        "not committed, so that others handle it again: t-3 from 10 to 19. Read on to join again"
    )
    assert (error.group, error.since) == ("etl", since)
    assert error.partitions == {("t", 3): range(10, 20), ("t", 1): range(7, 7)}


def test_each_public_name_is_there_and_listed() -> None:
    for name in [*warmlog.__all__, "__version__"]:
        assert getattr(warmlog, name) is not None
        assert name in dir(warmlog)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Prodcer'"):
        warmlog.Prodcer  # type: ignore[attr-defined]  # noqa: B018


def test_a_program_that_manages_loads_no_client_that_reads_or_writes() -> None:
    code = "import sys, warmlog; warmlog.Admin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "warmlog.admin.admin" in loaded
    assert not {"warmlog.producer.producer", "warmlog.consumer.consumer", "crc32c"} & {*loaded}


def test_the_import_alone_loads_no_event_loop() -> None:
    code = "import sys, warmlog; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("warmlog")] == ["warmlog"]
    assert not {"asyncio", "msgspec"} & {*loaded}


ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_hint_installs_what_the_extra_names(extra: str) -> None:
    program, command, *packages = shlex.split(install_hint(extra))
    assert (program, command) == ("pip", "install")
    assert [parts(package) for package in sorted(packages)] == [parts(package) for package in sorted(EXTRAS[extra])]


def test_without_metadata_a_hint_names_the_clone() -> None:
    assert install_hint("nothing") == "pip install '.[nothing]' in a clone of warmlog"


def test_without_pyarrow_arrow_reader_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from warmlog.ranges.arrow_reader import arrow_reader"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert "Arrow needs numpy and pyarrow: pip install" in done.stderr.splitlines()[-1]


def test_nothing_says_to_install_warmlog_from_an_index_that_does_not_have_it() -> None:
    roots = ("broker", "client", "protocol", "deploy", "docs", "examples", "README.md")
    for path in (found for root in roots for found in (ROOT / root, *(ROOT / root).rglob("*"))):
        if path.is_file() and path.suffix not in (".pyc", ".png"):
            assert not re.search(r"pip install '?warmlog", path.read_text()), path


def parts(requirement: str) -> list[str]:
    """The package and its bounds, in any order."""
    return sorted(re.split(r"(?=[<>])|,", requirement))
