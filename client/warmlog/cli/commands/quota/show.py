"""`warmlog quota list`."""

from warmlog.cli.commands.quota.options import OfClientId, OfUser, limits_text, user_of
from warmlog.cli.commands.user.change import DataDir
from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, run_admin
from warmlog.cli.terminal.output import json_line, table


@ends_cleanly
def list_quotas(
    user: OfUser = None,
    client_id: OfClientId = None,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """List the quotas, or those of a user or a client id."""
    from warmlog.admin.access.quotas import quota_descriptions

    if data_dir is None:
        quotas = run_admin(broker, lambda admin: admin.describe_quotas())
    else:
        from warmlog_broker.tools.quotas import quotas_in

        quotas = quota_descriptions(quotas_in(data_dir))
    found = [quota for quota in quotas if user_of(user) in (None, quota.user) and client_id in (None, quota.client_id)]
    if as_json:
        json_line(found)
    else:
        table(
            ("user", "client id", "limits"),
            [(quota.user or "", quota.client_id or "", limits_text(quota.limits)) for quota in found],
        )
