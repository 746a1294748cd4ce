"""The log of a broker process on stderr: text for people, or JSON for programs; with the request that a line is about.

Only a process of its own logs this way. A broker inside another program leaves logging to that program.
"""

import json
import logging
import sys
import threading
from datetime import UTC, datetime

from warmlog_broker.config.broker_settings import BrokerSettings, LogFormat
from warmlog_broker.config.log_levels import logger_names, parse_log_level
from warmlog_broker.network.request import current_request
from warmlog_broker.runtime.systemd import is_journal

_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""As in syslog(3)."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}

_log = logging.getLogger(__name__)


class TextLines(logging.Formatter):
    """`2026-11-23 22:52:45,123 WARNING message [request 17-4, Fetch of User:alice from 127.0.0.1:4711]`, in local time.

    Control characters are escaped: a peer may have chosen a part of the text. A traceback follows in lines of its own.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_CONTROLS)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        text = super().formatMessage(record)
        if request := current_request():
            text += " [request {request}, {api} of {principal} from {client}]".format(**request)
        return text.replace("\n", "\\x0a")


class JsonLines(logging.Formatter):
    """One JSON object a line: ts (RFC 3339, UTC), level, logger, message, the request's fields, and exception, a
    traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "ts": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **current_request(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _JournalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Puts its priority before each line, which the journal takes off: sd-daemon(3)."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return prefix + super().format(record).replace("\n", f"\n{prefix}")


def log_to_stderr(config: BrokerSettings) -> None:
    """Write log lines as `config` says from now on, with Python's warnings and the exceptions of threads."""
    is_text = config.log_format == LogFormat.TEXT or (config.log_format == LogFormat.AUTO and sys.stderr.isatty())
    handler = _JournalHandler() if is_journal(sys.stderr.fileno()) else logging.StreamHandler()
    handler.setFormatter(TextLines() if is_text else JsonLines())
    logging.getLogger().addHandler(handler)
    take_levels(config)
    logging.captureWarnings(capture=True)
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_end_of_thread


def take_levels(config: BrokerSettings) -> None:
    """Set the levels of all loggers as `config` says."""
    levels = parse_log_level(config.log_level)
    for part, name in logger_names().items():
        logger, level = logging.getLogger(name), levels.get(part, logging.NOTSET)
        if level != logger.level:  # each change empties what all loggers remember
            logger.setLevel(level)


def _log_unraisable(failure: "sys.UnraisableHookArgs") -> None:
    what = failure.err_msg or "an exception was ignored in"
    _log.error("%s %r: a bug", what, failure.object, exc_info=failure.exc_value)


def _log_end_of_thread(failure: threading.ExceptHookArgs) -> None:
    _log.critical("a thread has ended: a bug", exc_info=failure.exc_value)
