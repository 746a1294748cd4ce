"""AlterBrokerConfig: settings of a running broker. DescribeConfigs tells them."""

from msgspec import field

from warmlog_protocol.messages.base import Message


class AlterBrokerConfigRequest(Message, frozen=True):
    """Settings to `set`, and those to `unset`, which have the value again with which the broker was started.

    All are altered, or none. `validate_only` checks everything and changes nothing.
    """

    set: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    validate_only: bool = False


class AlterBrokerConfigResponse(Message, frozen=True):
    """All settings that are altered now, durably and in force; with `validate_only`, those that would be."""

    settings: dict[str, str]
