"""docs/settings.md is printed from the tables of settings."""

from pathlib import Path

from warmlog_broker.config.broker_config import describe_broker_settings
from warmlog_broker.storage.config import describe_topic_settings

PAGE = Path(__file__).parents[4] / "docs" / "settings.md"


def test_the_page_says_what_the_tables_say() -> None:
    expected = (
        f"# Settings\n\n## Of the broker\n\n{describe_broker_settings()}\n## Of a topic\n\n{describe_topic_settings()}"
    )
    assert PAGE.read_text() == expected
