"""kcat, with the old librdkafka that Debian has."""

import pytest

from clients import fetched
from clients.programs import numbered, run
from clients.served import CODECS, Served

CLIENT = "kcat 1.7.1 with librdkafka 2.0.2 (Debian 12)"
LINES = numbered()


def kcat(served: Served, *arguments: object, lines: list[str] | None = None) -> list[str]:
    return run(
        [fetched.debian("kcat"), "-b", served.address, *arguments], lines="".join(f"{line}\n" for line in lines or [])
    )


@pytest.mark.parametrize("codec", CODECS)
def test_writes_and_reads_every_codec(served: Served, codec: str) -> None:
    topic = f"kcat-{codec}"
    kcat(served, "-P", "-t", topic, "-K=", "-z", codec, lines=LINES)
    assert [f"{(each.key or b'').decode()}={(each.value or b'').decode()}" for each in served.read(topic)] == LINES
    served.write(topic, b"here", compression=codec)
    assert kcat(served, "-C", "-e", "-q", "-t", topic, "-f", "%k=%s\n") == [*LINES, "here=here"]


def test_headers_nulls_and_times(served: Served) -> None:
    kcat(served, "-P", "-t", "kcat-nulls", "-K=", "-Z", "-H", "trace=7", lines=["k=", "=v"])
    first, second = served.read("kcat-nulls")
    assert (first.key, first.value, list(first.headers)) == (b"k", None, [("trace", b"7")])
    assert (second.key, second.value) == (None, b"v")
    after = kcat(served, "-Q", "-t", f"kcat-nulls:0:{second.timestamp_ms + 1}")
    assert after in (["kcat-nulls [0] offset -1"], ["kcat-nulls [0] offset 2"])


def test_groups(served: Served) -> None:
    kcat(served, "-P", "-t", "kcat-group", "-K=", lines=LINES)
    options = ("-X", "auto.offset.reset=earliest", "-q", "-f", "%k=%s\n", "-G", "kcat-readers", "kcat-group")
    assert kcat(served, "-c", 200, *options) == LINES[:200]
    assert kcat(served, "-c", 300, *options) == LINES[200:]


def test_transactions(served: Served) -> None:
    kcat(served, "-P", "-t", "kcat-transaction", "-X", "transactional.id=kcat", "-K=", lines=LINES)
    assert len(served.read("kcat-transaction")) == len(LINES)
    read = kcat(
        served, "-C", "-e", "-q", "-t", "kcat-transaction", "-X", "isolation.level=read_committed", "-f", "%k=%s\n"
    )
    assert read == LINES


def test_lists_topics(served: Served) -> None:
    served.create("kcat-listed", partitions=3)
    assert '  topic "kcat-listed" with 3 partitions:' in kcat(served, "-L", "-t", "kcat-listed")
