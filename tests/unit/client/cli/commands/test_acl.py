"""The words of `warmlog acl`, which are written out so that a command starts without the protocol's messages."""

from warmlog.cli.commands.access.acl import OPERATIONS
from warmlog_protocol.messages import Operation


def test_each_operation_has_its_word() -> None:
    assert set(OPERATIONS) == {operation.name.lower() for operation in Operation}
