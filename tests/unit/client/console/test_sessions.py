"""The connections of the console's users, against a broker in memory."""

import pytest

from fake_broker import FakeBroker
from warmlog.console.sessions import Sessions, Settings


@pytest.mark.parametrize(("profile", "name"), [({}, "warmlog-console"), ({"client_name": "laptop"}, "laptop")])
async def test_a_session_has_the_name_of_the_profile_or_that_of_the_console(profile: dict[str, str], name: str) -> None:
    async with FakeBroker() as broker:
        sessions = Sessions(Settings(broker.address, {**profile}), "cookie")
        try:
            assert sessions.find(await sessions.open({})) is not None
        finally:
            await sessions.close()
    assert {each.client_name for each in broker.handshakes} == {name}
