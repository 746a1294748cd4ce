"""What a leader answers to the brokers that follow it."""

from concurrent.futures import ThreadPoolExecutor

from warmlog_broker.cluster.data_path.serving import Serving, answer_of
from warmlog_broker.network.request import MessageWithSlices
from warmlog_broker.replication.events import Verdict
from warmlog_protocol import messages as m


async def test_a_fetch_of_a_partition_that_is_not_served_yet_is_refused_and_not_kept() -> None:
    """A follower that hears of a new topic first would wait for long: the leader forgets what it cannot keep."""
    fetch = m.ReplicaFetch(bytes(16), 3, 7, 0, 41, 12, -1, 12, 0, -1, 0)
    with ThreadPoolExecutor(1) as threads:
        response = Serving(lambda _: None, threads).fetch(2, 1, m.ReplicaFetchRequest([fetch]))
    assert isinstance(response, MessageWithSlices)
    assert isinstance(response.message, m.ReplicaFetchResponse)
    (sent,) = response.message.answers
    answer = answer_of(sent)
    assert (sent.partition, answer.number, answer.offset, answer.verdict) == (3, 41, 12, Verdict.REFUSED)
    assert list(response.slices) == [[]]
