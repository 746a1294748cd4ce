"""format("warmlog") over TLS: batch, write and stream, and what a wrong option says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from certificates import Certificates
from warmlog import blocking
from warmlog.testing import EmbeddedBroker, embedded

RECORDS = 500


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    settings = {"tls_cert_file": certificates.broker, "tls_ca_file": certificates.ca, "tls_client_auth": "required"}
    with embedded(**settings) as broker:
        yield broker


def test_batches_writes_and_streams_go_by_tls(
    spark: SparkSession, secure: EmbeddedBroker, certificates: Certificates, tmp_path: Path
) -> None:
    tls = {"ssl": "true", "ssl.cafile": certificates.ca, "ssl.certfile": certificates.alice}
    with blocking.Admin(secure.address, ssl=True, ssl_cafile=certificates.ca, ssl_certfile=certificates.alice) as admin:
        admin.create_topic("t", partitions=2)
    options = {"bootstrap.servers": secure.address, **tls}
    frame = spark.range(RECORDS).selectExpr("cast(id as string) as key", "repeat('v', 5000) as value")
    frame.write.format("warmlog").options(**options, topic="t").mode("append").save()
    assert spark.read.format("warmlog").options(**options, subscribe="t").load().count() == RECORDS
    stream = spark.readStream.format("warmlog").options(**options, subscribe="t", startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("tls")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert spark.table("tls").count() == RECORDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "does it expect TLS"),
        ({"ssl": "true"}, "unknown issuer"),
        ({"ssl.cafile": "/ca.pem"}, "option ssl.cafile is given without TLS: add ssl=true"),
        ({"ssl": "true", "ssl.cafile": "/missing.pem"}, "option ssl.cafile='/missing.pem' cannot be read"),
    ],
)
def test_a_wrong_option_says_what_is_expected(
    spark: SparkSession, secure: EmbeddedBroker, options: dict[str, str], message: str
) -> None:
    given = {"bootstrap.servers": secure.address, "subscribe": "t", "fetchOffset.numRetries": "0", **options}
    with pytest.raises(PySparkException) as refused:
        spark.read.format("warmlog").options(**given).load().count()
    assert message in str(refused.value)
