"""Errors of our own: the asker learns that there was one, the log says which."""

import logging

from warmlog_protocol.errors import UnknownServerError

_log = logging.getLogger(__name__)


def own_failure(what: str) -> UnknownServerError:
    """Logs the exception that is being handled, with its traceback; returns what to answer."""
    _log.exception("%s failed: a bug", what)
    return UnknownServerError(f"{what} failed: the broker met an error of its own; its log says more")
