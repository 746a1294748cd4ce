"""The groups of `warmlog status`, if the broker has none to show."""

from typing import Any

import pytest

from warmlog import ApiError, BrokerInfo, CoordinatorNotAvailable, UnsupportedVersion
from warmlog.cli.commands.status import BrokerStatus, _with_groups


class Refusing:
    """An Admin whose broker refuses to list groups."""

    def __init__(self, error: ApiError) -> None:
        self._error = error

    async def list_groups(self) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "problems"),
    [
        (UnsupportedVersion("0.1.0 has no groups"), []),
        (CoordinatorNotAvailable("__groups-3 is offline"), ["groups: __groups-3 is offline"]),
    ],
    ids=["0.1.0", "offline"],
)
async def test_a_broker_without_groups_to_show_is_shown_nevertheless(error: ApiError, problems: list[str]) -> None:
    found = BrokerStatus(BrokerInfo(1, "b:1", "0.1.0", "c", ""), [], 0, [], [])
    admin: Any = Refusing(error)
    shown = await _with_groups(admin, found, None)
    assert (shown.groups, shown.problems) == ([], problems)
