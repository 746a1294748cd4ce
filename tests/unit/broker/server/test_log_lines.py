"""Log lines as text and as JSON, where the integration tests cannot see it."""

import logging

from warmlog_broker.server.log_lines import TextLines


def test_what_a_peer_has_chosen_cannot_begin_a_line_of_text_or_steer_the_terminal() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 1, "topic %s", ("a\n2026 CRITICAL b\x1b[2J\x9b",), None)
    assert TextLines().format(record).endswith(r"INFO topic a\x0a2026 CRITICAL b\x1b[2J\x9b")


def test_nor_can_it_in_a_traceback() -> None:
    error = ValueError("x\x1b[2J")
    record = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), (ValueError, error, None))
    assert TextLines().format(record).endswith("ERROR failed\nValueError: x\\x1b[2J")
