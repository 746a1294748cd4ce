"""A running Kafka, asked for what its data directories lack: the settings of topics, and their partition counts.

Needs aiokafka, `warmlog[adopt]`. Metadata is requested of all topics, since a request for one topic can create it, and
DescribeConfigs of those that are to be taken over.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from warmlog_broker.tools.adoption.kafka_directory import KafkaDirectory
from warmlog_broker.tools.adoption.partition import AdoptionRefused
from warmlog_broker.tools.adoption.plan import AdoptionOptions, topics_in
from warmlog_broker.tools.adoption.topic_configs import TopicConfigs, checked_configs

REQUEST_TIMEOUT_MS = 10_000
TIMEOUT_S = 30.0
SET_ON_TOPIC = 1
"""The source DYNAMIC_TOPIC_CONFIG in a DescribeConfigs response."""


def ask_kafka(address: str, kafka_paths: Sequence[Path], topics: frozenset[str] = frozenset()) -> TopicConfigs:
    """Return what the Kafka at `address` says of the topics in `kafka_paths`, or of those in `topics` if there are any.

    Only settings that were set on a topic are returned. The directories are read without a lock: that Kafka may use
    them. Raises AdoptionRefused if it does not tell, or if the directories are another cluster's, and InvalidConfig for
    a value that is not allowed.
    """
    directories = [KafkaDirectory.read(path) for path in kafka_paths]
    names = [topic.name for topic in topics_in(directories, AdoptionOptions(topics))]
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it logs as errors it also raises
    try:
        partitions, settings = asyncio.run(_ask(address, directories, names))
    except (KafkaError, TimeoutError, OSError) as error:
        raise AdoptionRefused(
            f"cannot ask the Kafka at {address}: {error or 'no response'}. Expected one that listens there without TLS "
            f"and SASL, and whose advertised.listeners can be reached from here: for another, give the output of "
            f"kafka-configs.sh by --topic-configs"
        ) from error
    return checked_configs(settings, f"the Kafka at {address}", partitions)


async def _ask(
    address: str, directories: list[KafkaDirectory], names: list[str]
) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
    """Return partition counts and settings of the topics."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address, client_id="warmlog", request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await admin.start()
            cluster_id = (await admin.describe_cluster()).get("cluster_id", "")
            for directory in directories:
                if directory.cluster_id not in ("", cluster_id):
                    raise AdoptionRefused(
                        f"the Kafka at {address} is of cluster {cluster_id}, but {directory.path} of "
                        f"{directory.cluster_id}: give the address of a Kafka of that cluster"
                    )
            counts = _counts(await admin.describe_topics(), names, address)
            asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
            (response,) = await admin.describe_configs(asked)
    finally:
        await admin.close()
    return counts, _settings(response, address)


def _counts(topics: list[dict[str, Any]], names: list[str], address: str) -> dict[str, int]:
    found = {topic["topic"]: len(topic["partitions"]) for topic in topics}
    unknown = [name for name in names if name not in found]
    if unknown:
        raise AdoptionRefused(
            f"the Kafka at {address} has no topic {', '.join(unknown)}, or does not show it without a permission to "
            f"Describe: take over the others by --topic, or give settings by --topic-configs"
        )
    return {name: found[name] for name in names}


def _settings(response: Any, address: str) -> dict[str, dict[str, str]]:
    """Return by topic what was set on it. AdoptionRefused if Kafka does not report that of one of them."""
    if response.API_VERSION == 0:
        raise AdoptionRefused(
            f"the Kafka at {address} is older than 1.1 and does not report which settings were set on a topic: "
            f"pass them with --topic-configs"
        )
    found: dict[str, dict[str, str]] = {}
    for code, message, _, topic, entries in response.resources:
        if code:
            raise AdoptionRefused(
                f"the Kafka at {address} does not tell the settings of topic {topic}: {for_code(code).__name__}, "
                f"{message.rstrip('.')}. Grant this client DescribeConfigs, or give --topic-configs"
            )
        found[topic] = {name: value for name, value, _, source, *_ in entries if source == SET_ON_TOPIC}
    return found
