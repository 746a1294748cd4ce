"""`warmlog txn abort`."""

from warmlog.cli.terminal.exits import CommandFailed, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, IsCertain, TransactionalId, run_admin
from warmlog.cli.terminal.output import confirmed, counted, json_line, note


@ends_cleanly
def abort(
    transactional_id: TransactionalId,
    is_certain: IsCertain = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Abort the open transaction of a producer or a job that does not end it. Asks for confirmation on a terminal.

    Its records are never delivered to readers of committed records, and its producer gets an error.
    """
    found = run_admin(broker, lambda admin: admin.describe_transaction(transactional_id))
    what = f"the transaction of {transactional_id} in {counted(len(found.partitions), 'partition')}"
    if not is_certain and not confirmed(f"Abort {what}?"):
        raise CommandFailed(f"the transaction of {transactional_id} was not aborted")
    run_admin(broker, lambda admin: admin.abort_transaction(transactional_id))
    if as_json:
        json_line({"transactional_id": transactional_id, "aborted": True})
        return
    note(f"aborted {what}")
