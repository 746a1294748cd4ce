"""Unexpected errors: logged in full, and reported to the client without details."""

import logging
import sys

from warmlog_broker.storage.io.os_errors import is_resource_exhaustion, storage_error
from warmlog_protocol.errors import ApiError, UnknownServerError

_log = logging.getLogger(__name__)


def own_failure(what: str) -> ApiError:
    """Log the exception that is being handled; return the error for the client.

    If memory or descriptors ran out, the error says so. Anything else is a bug, logged with its traceback.
    """
    error = sys.exception()
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = MemoryError(str(error))
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and is_resource_exhaustion(error)):
        text = f"{what} failed: {str(error) or 'the broker is out of memory'}"
        _log.error("%s", text)
        return storage_error(text, error)
    _log.exception("%s failed: a bug", what)
    return UnknownServerError(f"{what} failed: an internal error of the broker, see its log")
