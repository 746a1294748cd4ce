"""An adoption from its checks to its commit, with the directories locked."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from warmlog_broker.metadata.metadata_log import FILE_NAME, MetadataLog
from warmlog_broker.storage.directory.data_dir import LOCK_NAME, DataDirectory
from warmlog_broker.storage.directory.dir_lock import shared_lock
from warmlog_broker.storage.kafka.adoption import check_partition
from warmlog_broker.tools.adoption.adoption import Adoption, AdoptionOptions
from warmlog_broker.tools.adoption.commit import commit
from warmlog_broker.tools.adoption.plan import make_plan, state_of
from warmlog_broker.tools.adoption.staging import STAGING_NAME, OnProgress, clear_up, stage


def plan_adoption(
    kafka_paths: Sequence[Path],
    data_dir: Path,
    options: AdoptionOptions,
    *,
    on_checked: Callable[[str], None] = lambda _name: None,
) -> Adoption:
    """Make all checks and return what `adopt` would do, without writing anything.

    Raises AdoptionRefused, DirectoryLocked, NotKafkas, or StorageError for unreadable files.
    """
    with ExitStack() as stack:
        for path in (*kafka_paths, data_dir):
            if path.exists():
                stack.enter_context(shared_lock(path))
        return _checked_plan(kafka_paths, data_dir, options, on_checked)


def adopt(
    kafka_paths: Sequence[Path],
    data_dir: Path,
    options: AdoptionOptions,
    *,
    now_ms: int,
    on_checked: Callable[[str], None] = lambda _name: None,
    on_copied: OnProgress = lambda _name, _done, _total: None,
) -> Adoption:
    """Take over all topics or none; on return they are on disk. Raises as `plan_adoption` does, and OSError."""
    with ExitStack() as stack:
        for path in kafka_paths:
            stack.enter_context(shared_lock(path))
        with shared_lock(data_dir):
            _checked_plan(kafka_paths, data_dir, options, on_checked)
        missing = _missing(data_dir)
        stack.callback(DataDirectory.lock(data_dir).close)
        try:
            metadata_log, _ = MetadataLog.open(data_dir)
            metadata_log.close()
            clear_up(data_dir, metadata_log.state)
            adoption = make_plan(kafka_paths, data_dir, options, metadata_log.state)
            if adoption.topics:
                stage(adoption, data_dir / STAGING_NAME, options, now_ms, on_copied)
        except BaseException:
            _remove(missing)
            raise
        if adoption.topics:
            commit(adoption, data_dir, metadata_log.state, options.configs.known)
    return adoption


def _checked_plan(
    kafka_paths: Sequence[Path], data_dir: Path, options: AdoptionOptions, on_checked: Callable[[str], None]
) -> Adoption:
    """Plan, and check every batch in Kafka's files."""
    adoption = make_plan(kafka_paths, data_dir, options, state_of(data_dir))
    if options.must_recover:
        return adoption  # a log that was not closed is checked once its copy is recovered
    for topic in adoption.topics:
        for source in topic.sources.values():
            check_partition(source)
            on_checked(source.key.directory_name)
    return adoption


def _missing(data_dir: Path) -> list[Path]:
    """Return what an adoption will create before it commits: files, then directories from the innermost out."""
    path = data_dir.absolute()
    return [each for each in (path / FILE_NAME, path / LOCK_NAME, path, *path.parents) if not each.exists()]


def _remove(created: list[Path]) -> None:
    """Remove what was created; a directory that holds anything else stays."""
    for path in created:
        with suppress(OSError):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
