"""Transactions as Prometheus metric families: computed by each scrape, without labels that grow with their number."""

from collections import Counter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from warmlog_broker.coordinator.transaction.decisions.records import End
from warmlog_broker.handlers.context import Services
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.tasks import in_turns
from warmlog_protocol.errors import ApiError

STATES = ("empty", "ongoing", "committing", "aborting")
ENDS = (End.COMMITTED, End.ABORTED, End.TIMED_OUT, End.REPLACED, End.FORCED)
IDS_A_TURN = 500
"""Transactional ids that are looked at in one turn of the event loop."""


async def transaction_families(services: Services) -> list[Metric]:
    """Return all families; the gauges have no samples while the coordinator loads."""
    ids = GaugeMetricFamily("warmlog_transactional_ids", "Transactional ids by state", labels=["state"])
    oldest = GaugeMetricFamily("warmlog_transaction_oldest_seconds", "Age of the oldest open transaction")
    ended = CounterMetricFamily("warmlog_transactions_ended", "Transactions that have ended", labels=["end"])
    for end in ENDS:
        ended.add_metric([end.name.lower()], services.coordinators.transactions.ended[end])
    try:
        found = services.coordinators.transactions.transactions()
    except ApiError:
        return [ids, oldest, ended]
    states: Counter[str] = Counter()
    now = began_ms = now_ms()
    async for each in in_turns(found, IDS_A_TURN):
        value = each.value
        states[value.status.name.lower()] += 1
        if value.began_ms >= 0:
            began_ms = min(began_ms, value.began_ms)
    for state in STATES:
        ids.add_metric([state], states[state])
    oldest.add_metric([], max(now - began_ms, 0) / 1000)
    return [ids, oldest, ended]
