"""Sharing descriptors between connections and files."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.runtime.file_limit import LEAST_OPEN_FILES, RESERVED, raise_file_limit, share_files


def test_everybody_gets_what_is_wanted_when_there_is_enough() -> None:
    assert share_files(20_000, connections=8000, open_files=8000) == (8000, 8000)


def test_both_give_way_when_there_is_not() -> None:
    connections, open_files = share_files(RESERVED + 1000, connections=3000, open_files=1000)
    assert connections + open_files == 1000
    assert open_files == 250


@given(st.integers(0, 100_000), st.integers(1, 20_000), st.integers(64, 20_000))
def test_nobody_gets_more_than_is_wanted_or_nothing(limit: int, connections: int, open_files: int) -> None:
    shares = share_files(limit, connections=connections, open_files=open_files)
    assert 1 <= shares.connections <= connections
    assert LEAST_OPEN_FILES <= shares.open_files <= open_files
    assert sum(shares) <= max(limit - RESERVED, 2 * LEAST_OPEN_FILES)


def test_the_soft_limit_is_raised_as_far_as_the_hard_one_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert raise_file_limit(2000) == 2000
    assert raise_file_limit(100_000) == 4096
    assert limits[-1] == (4096, 4096)
    assert raise_file_limit(100) == 4096
