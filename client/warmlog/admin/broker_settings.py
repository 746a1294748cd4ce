"""The part of the admin client for the broker's settings while it runs."""

from collections.abc import Mapping, Sequence

from warmlog.admin.arguments import SettingGiven, checked_texts, setting_texts
from warmlog.admin.connected import Connected
from warmlog_protocol.messages import AlterBrokerConfigRequest, AlterBrokerConfigResponse


class BrokerSettingsAdmin(Connected):
    """Alters settings of the broker."""

    async def alter_broker(
        self,
        *,
        set: Mapping[str, SettingGiven] | None = None,  # noqa: A002
        unset: Sequence[str] = (),
        validate_only: bool = False,
    ) -> dict[str, str]:
        """Change settings of the broker, all of them or none, and return all that are altered then.

        Those to `unset` have the value again with which the broker was started. Durable and in force on return, also
        after a restart; `validate_only` checks and changes nothing. A topic's setting is the default of topics without
        one of their own. `describe_broker` tells which settings can be altered (`is_dynamic`).

        Raises NeedsRestart for another one, InvalidConfig, InvalidRequest for a setting in both, and TypeError.
        """
        request = AlterBrokerConfigRequest(setting_texts(set or {}), checked_texts(unset, "unset"), validate_only)
        if not request.set and not request.unset:
            raise ValueError("alter_broker without a setting: give `set` or `unset`")
        return (await self._open().call(request, AlterBrokerConfigResponse)).settings
