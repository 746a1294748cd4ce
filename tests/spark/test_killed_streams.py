"""Streams of Spark with real executors, of which everything is killed; `make spark-kills` has more of them."""

from pathlib import Path

import pytest

from spark.killed.run import KILLS, run

pytestmark = pytest.mark.slow


def test_streams_write_each_row_once_whatever_is_killed(tmp_path: Path) -> None:
    outcome = run(tmp_path, seed=1, streams=4, kills=len(KILLS))
    assert outcome.findings == []
    assert set(outcome.kills) == set(KILLS)
    assert outcome.batches > 4
