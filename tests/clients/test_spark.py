"""Spark's own Kafka connector: the job of the documentation for people who come from Kafka, with nothing ported."""

from pathlib import Path

from clients import fetched
from clients.served import Served
from spark.ported_job import submit

CLIENT = "Spark's Kafka connector 4.2.0"


def test_the_same_job_by_kafkas_connector_and_by_warmlogs(served: Served, tmp_path: Path) -> None:
    def run(source: str, address: str, **settings: str) -> object:
        served.create("orders", partitions=2)
        served.create("totals")
        try:
            return submit(source, address, tmp_path / source, **settings)
        finally:
            served.delete("orders")
            served.delete("totals")

    class_path = {"spark.driver.extraClassPath": f"{fetched.jars('connector')}/*"}
    by_kafkas = run("kafka", served.address, **class_path)
    assert by_kafkas == run("warmlog", served.broker.address)
