"""The end of an adoption: the copies become partitions, and their topics appear at once."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from warmlog_broker.metadata.metadata_log import (
    FILE_NAME,
    AnyEntry,
    MetadataState,
    ProducerIdsReserved,
    TopicCreated,
    pack_file,
)
from warmlog_broker.storage.directory.data_dir import (
    HIGH_WATERMARKS_NAME,
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
)
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets, write_offsets
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_broker.tools.adoption.adoption import Adoption
from warmlog_broker.tools.adoption.staging import STAGING_NAME, write_journal

KEEPS_EVERYTHING = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}


def commit(adoption: Adoption, data_dir: Path, state: MetadataState, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Move the copies in, and add checkpoints and topics; then remove `.adopting`."""
    staging = data_dir / STAGING_NAME
    names = {log.key.directory_name: str(topic.topic_id) for topic in adoption.topics for log in topic.logs.values()}
    write_journal(staging, names)
    for name in names:
        (staging / name).rename(data_dir / name)
    sync_directory(data_dir)
    _add_checkpoints(data_dir, adoption)
    replace_file(data_dir / FILE_NAME, pack_file([*state.entries(), *_entries(adoption, state, configs)]))
    shutil.rmtree(staging)
    sync_directory(data_dir)


def _add_checkpoints(data_dir: Path, adoption: Adoption) -> None:
    logs = [log for topic in adoption.topics for log in topic.logs.values()]
    for name, field_name in (
        (RECOVERY_POINTS_NAME, "recovery_point"),
        (LOG_STARTS_NAME, "log_start_offset"),
        (HIGH_WATERMARKS_NAME, "high_watermark"),
    ):
        path = data_dir / name
        added = {log.key: int(getattr(log.offsets, field_name)) for log in logs}
        write_offsets(path, {**read_offsets(path), **added})


def _entries(adoption: Adoption, state: MetadataState, configs: Mapping[str, Mapping[str, str]]) -> list[AnyEntry]:
    """Return the new entries of the metadata log: the topics, and the first producer id above those in their logs."""
    entries: list[AnyEntry] = []
    max_producer_id = state.next_producer_id - 1
    for topic in adoption.topics:
        summaries = [log.summary for log in topic.logs.values()]
        max_epoch = max(summary.max_leader_epoch for summary in summaries)
        max_producer_id = max([max_producer_id, *(summary.max_producer_id for summary in summaries)])
        settings = {**KEEPS_EVERYTHING, **configs.get(topic.name, {})}
        entries.append(TopicCreated(topic.name, topic.topic_id.bytes, topic.partitions, settings, max_epoch + 1))
    entries.append(ProducerIdsReserved(max_producer_id + 1))
    return entries
