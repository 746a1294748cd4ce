"""Topic settings: the table, what users may write, and what is said when they may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from settings_page import describe_settings
from warmlog_broker.storage.config import (
    TOPIC_SETTINGS,
    LogConfig,
    Setting,
    normalized,
    setting_named,
)
from warmlog_protocol.errors import InvalidConfig


def test_every_row_is_a_field_of_the_config_with_the_same_default() -> None:
    by_attribute = {setting.attribute: setting.default for setting in TOPIC_SETTINGS}
    derived = {"is_compacted", "roll_ms", "must_decode", "takes_append_time"}
    assert by_attribute == {each.name: each.default for each in fields(LogConfig) if each.name not in derived}


def test_defaults_are_kafkas_where_the_table_does_not_say_otherwise() -> None:
    config = LogConfig()
    assert config.segment_bytes == 2**30
    assert config.segment_ms == config.retention_ms == 7 * 24 * 3600 * 1000
    assert config.retention_bytes == -1
    assert config.index_interval_bytes == 4096
    assert config.segment_index_bytes == 10 * 1024 * 1024
    assert config.max_message_bytes == 1024 * 1024 + 12
    assert config.message_timestamp_after_max_ms == 3_600_000


def test_settings_override_the_base_and_leave_the_rest() -> None:
    base = LogConfig.from_settings({"segment.bytes": "16777216", "write.caching": "TRUE"})
    config = LogConfig.from_settings({"retention.ms": "-1"}, base=base)
    assert (config.segment_bytes, config.write_caching, config.retention_ms) == (16777216, True, -1)
    assert config.index_interval_bytes == LogConfig().index_interval_bytes


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("segment.bytes", "12"),
        ("segment.bytes", "1 MiB"),
        ("segment.bytes", str(2**31)),
        ("segment.bytes", "1_000_000"),
        ("segment.bytes", "1" * 5000),
        ("retention.ms", "-2"),
        ("write.caching", "yes"),
        ("message.timestamp.type", "createtime"),
        ("cleanup.policy", "compact,remove"),
        ("cleanup.policy", ""),
        ("compression.type", "none"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "-0.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("flush.messages", "0"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_naming_setting_value_and_what_is_allowed(name: str, given: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        LogConfig.from_settings({name: given})
    message = str(refused.value)
    assert name in message
    assert repr(given) in message
    assert setting_named(name).allowed in message


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("retention.ms", "7d", 604_800_000),
        ("retention.ms", "12h", 43_200_000),
        ("retention.ms", "90m", 5_400_000),
        ("retention.ms", " 30s ", 30_000),
        ("retention.ms", "250ms", 250),
        ("retention.ms", "-1", -1),
        ("retention.bytes", "1KiB", 1024),
        ("retention.bytes", "3MiB", 3 * 2**20),
        ("retention.bytes", "1GiB", 2**30),
        ("retention.bytes", "2TiB", 2**41),
        ("retention.bytes", "5kB", 5000),
        ("retention.bytes", "5MB", 5_000_000),
        ("retention.bytes", "5gb", 5_000_000_000),
        ("retention.bytes", "5TB", 5_000_000_000_000),
    ],
)
def test_durations_and_sizes_are_written_as_people_write_them(name: str, given: str, value: int) -> None:
    assert setting_named(name).parse(given) == value
    assert normalized({name: given}) == {name: str(value)}


@pytest.mark.parametrize(
    ("name", "given", "example"),
    [
        ("retention.ms", "7GiB", "or a duration such as 7d, 12h, 90m, 30s or 250ms"),
        ("retention.ms", "-1d", "or a duration such as"),
        ("retention.ms", "1.5h", "or a duration such as"),
        ("retention.ms", "d", "or a duration such as"),
        ("retention.ms", "9223372036854775807d", "or a duration such as"),
        ("segment.bytes", "7d", "or a size such as 64KiB, 100MB or 1GiB"),
        ("segment.bytes", "4GiB", "or a size such as"),
        ("flush.messages", "7d", "it must be a whole number from 1 to 9223372036854775807"),
        ("flush.messages", "1KiB", "it must be a whole number"),
    ],
)
def test_a_quantity_of_another_unit_is_refused_with_examples_of_the_right_one(
    name: str, given: str, example: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        setting_named(name).parse(given)
    assert example in str(refused.value)
    assert ("such as" in str(refused.value)) == (setting_named(name).unit in ("ms", "bytes"))


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfig, match=r"'segment.byte' is not a topic setting; did you mean segment.bytes\?"):
        LogConfig.from_settings({"segment.byte": "1048576"})
    with pytest.raises(InvalidConfig, match=r"'zzz' is not a topic setting$"):
        LogConfig.from_settings({"zzz": "1"})


def any_text_for(setting: Setting) -> st.SearchStrategy[str]:
    if setting.kind == "boolean":
        return st.sampled_from(["true", "false"])
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.kind == "number":
        return st.integers(100 * setting.minimum, 100 * setting.maximum).map(lambda percent: f"{percent / 100:g}")
    return st.integers(setting.minimum, setting.maximum).map(str)


@given(st.fixed_dictionaries({setting.name: any_text_for(setting) for setting in TOPIC_SETTINGS}))
def test_what_is_allowed_comes_back_as_it_was_written(settings: dict[str, str]) -> None:
    settings["max.compaction.lag.ms"] = max(
        settings["min.compaction.lag.ms"], settings["max.compaction.lag.ms"], key=int
    )
    assert LogConfig.from_settings(settings).to_settings() == settings


def test_the_documentation_has_every_setting_once() -> None:
    text = describe_settings(TOPIC_SETTINGS)
    for setting in TOPIC_SETTINGS:
        assert text.count(f"### `{setting.name}`\n") == 1
        assert setting.sentence.endswith((".", ")."))


@pytest.mark.parametrize(
    ("given", "is_compacted", "deletes", "written"),
    [
        ("delete", False, True, "delete"),
        ("compact", True, False, "compact"),
        ("compact,delete", True, True, "compact,delete"),
        (" delete , compact ", True, True, "compact,delete"),
        ("delete,delete", False, True, "delete"),
    ],
)
def test_the_cleanup_policy_is_a_list_in_any_order(given: str, is_compacted: bool, deletes: bool, written: str) -> None:
    config = LogConfig.from_settings({"cleanup.policy": given})
    assert (config.is_compacted, config.deletes) == (is_compacted, deletes)
    assert config.to_settings()["cleanup.policy"] == written


def test_the_least_lag_must_not_be_longer_than_the_longest() -> None:
    LogConfig.from_settings({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms: 6 is not allowed, max.compaction.lag.ms is 5"):
        LogConfig.from_settings({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_a_ratio_is_a_number_and_reads_back() -> None:
    config = LogConfig.from_settings({"min.cleanable.dirty.ratio": "0.25"})
    assert config.min_cleanable_dirty_ratio == 0.25
    assert LogConfig.from_settings(config.to_settings()) == config


def test_compacted_topics_close_their_segments_within_the_longest_lag() -> None:
    settings = {"segment.ms": "1000", "max.compaction.lag.ms": "50"}
    assert LogConfig.from_settings(settings).roll_ms == 1000
    assert LogConfig.from_settings({**settings, "cleanup.policy": "compact"}).roll_ms == 50
