"""The names of the package `warmlog`, which are imported when they are first used."""

import subprocess
import sys

import pytest

import warmlog


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
