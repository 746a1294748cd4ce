"""Which quota applies to a client, and which changes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_quotas import quota
from warmlog_broker.security import quota_rules
from warmlog_broker.security.quota_rules import AppliedLimit, QuotaEntity, applied_limit, changed_limits
from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.messages import ClientQuota, QuotaKey, QuotaLimit

KEY = QuotaKey.PRODUCER_BYTE_RATE
PRECEDENCE = [("u", "c"), ("u", "*"), ("u", None), ("*", "c"), ("*", "*"), ("*", None), (None, "c"), (None, "*")]
"""Kafka's, for the user u with the client id c (KIP-55)."""
SHARED_BY = [("u", "c"), ("u", "c"), ("u", None), ("u", "c"), ("u", "c"), ("u", None), (None, "c"), (None, "c")]
OTHERS = [("v", "c"), ("v", None), ("u", "d"), (None, "d"), ("*", "d"), ("v", "*")]


@given(st.dictionaries(st.sampled_from(PRECEDENCE + OTHERS), st.sampled_from([*QuotaKey]), max_size=14))
def test_the_most_specific_quota_with_the_limit_applies(kinds: dict[tuple[str | None, str | None], QuotaKey]) -> None:
    quotas = {entity: {key.value: number + 1} for number, (entity, key) in enumerate(kinds.items())}
    expected = next(
        (
            AppliedLimit(quotas[entity][KEY], QuotaEntity(*shared_by), QuotaEntity(*entity))
            for entity, shared_by in zip(PRECEDENCE, SHARED_BY, strict=True)
            if kinds.get(entity) is KEY
        ),
        None,
    )
    assert applied_limit(quotas, KEY, "u", "c") == expected


def test_each_limit_is_looked_up_by_itself() -> None:
    quotas = {("u", "c"): {"request_rate": 1}, ("u", None): {"producer_byte_rate": 2}}
    assert applied_limit(quotas, QuotaKey.PRODUCER_BYTE_RATE, "u", "c") == (2, ("u", None), ("u", None))
    assert applied_limit(quotas, QuotaKey.CONSUMER_BYTE_RATE, "u", "c") is None


def test_a_change_adds_replaces_and_removes_limits() -> None:
    quotas = {("u", None): {"producer_byte_rate": 1, "request_rate": 2}}
    change = quota("u", producer_byte_rate=5, request_rate=0, consumer_byte_rate=7)
    assert changed_limits(quotas, change) == {"producer_byte_rate": 5, "consumer_byte_rate": 7}
    assert changed_limits(quotas, quota("u", producer_byte_rate=0, request_rate=0)) == {}
    assert changed_limits(quotas, quota("v", request_rate=0)) == {}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (quota(request_rate=1), "a user, a client id or both"),
        (quota("", request_rate=1), "1 to 255 printable"),
        (quota("u" * 256, request_rate=1), "1 to 255 printable"),
        (quota(None, "c" * 101, request_rate=1), "1 to 100 printable"),
        (quota(None, "a\nb", request_rate=1), "client id 'a\\nb'"),
        (quota("u"), "at least one limit"),
        (ClientQuota("u", None, [QuotaLimit("request_rate", 1)] * 2), "none of them twice"),
        (quota("u", produce_rate=1), "there is no limit 'produce_rate'"),
        (quota("u", request_rate=-1), "at least 1"),
        (quota("u", "c", connections=1), "leave out the client id"),
    ],
)
def test_what_no_quota_can_be_is_refused(change: ClientQuota, part: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        changed_limits({}, change)
    assert part in str(refused.value)


def test_the_number_of_quotas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_rules, "MAX_QUOTAS", 1)
    quotas = {("u", None): {"request_rate": 1}}
    assert changed_limits(quotas, quota("u", request_rate=2)) == {"request_rate": 2}
    assert changed_limits(quotas, quota("v", request_rate=0)) == {}
    with pytest.raises(InvalidRequest, match="there are 1 quotas"):
        changed_limits(quotas, quota("v", request_rate=2))
