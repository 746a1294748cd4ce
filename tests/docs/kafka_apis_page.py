"""`python -m docs.kafka_apis_page` writes the page of the APIs that clients of Kafka are offered."""

from docs.blocks import ROOT
from warmlog_broker.kafka.cluster import FEATURES, OLDEST_PRODUCE
from warmlog_broker.kafka.translators import TRANSLATORS
from warmlog_protocol.kafka.schema import API

PAGE = ROOT / "docs" / "reference" / "kafka-apis.md"
_ABOUT = """\
# Kafka APIs

What a listener of [Kafka's clients](../how-to/kafka-clients.md) offers, as ApiVersions says it. Produce is served from
version 3 on: some clients take a broker without version 0 for one that knows no compression.

| API | key | versions |
|---|---|---|
"""


def page() -> str:
    """The page, as the tables say it."""
    rows = []
    for api in sorted((API[name] for name in TRANSLATORS), key=lambda api: api.key):
        first = OLDEST_PRODUCE if api.name == "Produce" else api.versions.first
        versions = str(first) if first == api.versions.last else f"{first} to {api.versions.last}"
        rows.append(f"| {api.name} | {api.key} | {versions} |\n")
    features = [f"`{name}` {level}" for name, level in FEATURES.items()]
    return f"{_ABOUT}{''.join(rows)}\nFeatures that are in force: {', '.join(features)}.\n"


if __name__ == "__main__":
    PAGE.write_text(page())
