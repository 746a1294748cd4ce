"""docs/settings.md is printed from the tables of settings."""

from pathlib import Path

from settings_page import ABOUT_VALUES, describe_settings
from warmlog_broker.config.broker_config import BROKER_SETTINGS
from warmlog_broker.storage.config import TOPIC_SETTINGS

PAGE = Path(__file__).parents[4] / "docs" / "settings.md"


def test_the_page_says_what_the_tables_say() -> None:
    broker, topic = describe_settings(BROKER_SETTINGS), describe_settings(TOPIC_SETTINGS)
    assert PAGE.read_text() == f"# Settings\n\n{ABOUT_VALUES}\n## Of the broker\n\n{broker}\n## Of a topic\n\n{topic}"
