"""Many connections: held, served, cut at their deadline, given back. `make connections` holds thousands."""

from pathlib import Path

from faults.connections.run import run


def test_connections_are_served_and_half_open_ones_cut_and_all_is_given_back(tmp_path: Path) -> None:
    outcome = run(tmp_path / "data", idle=300, half_open=100, deadline_ms=3000, trim_interval_s=1.0)
    assert outcome.findings == [], str(outcome)
    assert outcome.cut.count == 100
