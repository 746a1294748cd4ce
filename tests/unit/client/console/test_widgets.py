"""What the console's tables get of cells."""

from warmlog.cli.terminal.tables import Instant
from warmlog.console.widgets import _row


def test_a_time_that_a_browser_does_not_have_is_shown_as_a_number() -> None:
    row = _row(0, [Instant(1_700_000_000_000), Instant(1_700_000_000_000_000_000), Instant(-1)])
    assert row["times"] == {0: True}
    assert row["texts"][1:] == ["1700000000000000000", ""]
