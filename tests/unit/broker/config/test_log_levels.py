"""`log.level`: what it may say."""

import logging
import re

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.log_levels import logger_names, parse_log_level
from warmlog_protocol.errors import InvalidConfig


def test_a_level_is_for_the_whole_broker_or_for_a_part() -> None:
    assert parse_log_level("Warning") == {"": logging.WARNING}
    levels = parse_log_level("info, network = debug,storage=error")
    assert levels == {"": logging.INFO, "network": logging.DEBUG, "storage": logging.ERROR}
    assert logger_names()["network"] == "warmlog_broker.network"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("loud", "'loud' is not a level, it must be debug or info or warning or error or critical"),
        ("", "'' is not a level"),
        ("info,netwrk=debug", "'netwrk' is not a part of the broker; did you mean network?"),
        ("info,x=debug", "'x' is not a part of the broker; the parts are config, coordinator, "),
        ("network=debug", "has no level for the whole broker, such as info,network=debug"),
        ("info,debug", "has two levels for the whole broker"),
        ("info,network=debug,network=info", "has two levels for network"),
    ],
)
def test_levels_that_cannot_be_are_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(named)):
        BrokerConfig.from_settings({"data.dir": "data", "log.level": text})
