"""Options of the Spark format: what is understood, and what is said of the rest."""

import re

import pytest

from warmlog.errors import InvalidConfig
from warmlog.spark.options import EARLIEST, LATEST, OPTIONS, ReadOptions, parse_options

BASE = {"bootstrap.servers": "b:1", "subscribe": "t"}


def test_defaults_are_those_of_a_batch_of_sparks_kafka_connector() -> None:
    assert parse_options(BASE) == ReadOptions(
        ("b:1",), ("t",), starting=EARLIEST, ending=LATEST, min_partitions=None, include_headers=False
    )


def test_every_option_is_known_in_any_case() -> None:
    given = {
        "BOOTSTRAP.servers": "b:1, c , [::1]:9",
        "Subscribe": " x ,y,, x",
        "startingoffsets": '{"x": {"0": 23, "1": -2}, "y": {"0": 0}}',
        "ENDINGOFFSETS": '{"x": {"0": 30, "1": -1}, "y": {"0": 5}}',
        "minpartitions": "7",
        "INCLUDEHEADERS": "True",
    }
    assert {name.lower() for name in given} == {name.lower() for name in OPTIONS}
    assert parse_options(given) == ReadOptions(
        ("b:1", "c:7400", "[::1]:9"),
        ("x", "y"),
        starting={"x": {0: 23, 1: EARLIEST}, "y": {0: 0}},
        ending={"x": {0: 30, 1: LATEST}, "y": {0: 5}},
        min_partitions=7,
        include_headers=True,
    )


def test_kafkas_name_for_the_broker_is_an_alias() -> None:
    assert parse_options({"kafka.bootstrap.servers": "k:2", "subscribe": "t"}).bootstrap == ("k:2",)
    with pytest.raises(InvalidConfig, match=r"bootstrap.servers is given twice, as '.:.' and as '.:.'"):
        parse_options({**BASE, "kafka.bootstrap.servers": "k:2"})
    assert parse_options({**BASE, "kafka.bootstrap.servers": "b:1"}).bootstrap == ("b:1",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "format warmlog has no option startingOfsets: did you mean startingOffsets?"),
        ({"topic": "t"}, "no option topic: there are bootstrap.servers, subscribe, startingOffsets, "),
        ({"kafka.bootstrap.server": "b"}, "did you mean kafka.bootstrap.servers?"),
        ({"path": "t"}, "load() of format warmlog takes no path: name the topics with the option subscribe"),
        (
            {"owner": "root", "provider": "warmlog"},
            "a table of format warmlog cannot be created, as Spark",
        ),
        ({"subscribe": " , "}, "option subscribe is missing: the topics to read, separated by commas"),
        ({"bootstrap.servers": "b:x"}, "option bootstrap.servers: address 'b:x' is not HOST:PORT"),
        ({"minPartitions": "0"}, "option minPartitions is '0': a whole number of at least 1 is expected"),
        ({"minPartitions": "many"}, "option minPartitions is 'many': a whole number"),
        ({"includeHeaders": "yes"}, "option includeHeaders is 'yes': true or false is expected"),
        ({"startingOffsets": "latest"}, "option startingOffsets cannot be latest: a batch cannot start at the latest"),
        ({"endingOffsets": "earliest"}, "option endingOffsets cannot be earliest: a batch cannot end at"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "option startingOffsets gives t-0 -1: a batch cannot start at the"),
        (
            {"endingOffsets": '{"t": {"3": -2}}'},
            "option endingOffsets gives t-3 -2: a batch cannot end at the earliest",
        ),
        (
            {"startingOffsets": '{"t": {"0": -3}}'},
            "option startingOffsets gives t-0 the offset -3: earliest, latest or",
        ),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "option startingOffsets gives t-0 the offset 1.5"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "option startingOffsets gives t-0 the offset True"),
        (
            {"startingOffsets": '{"t": {"zero": 1}}'},
            'option startingOffsets is \'{"t": {"zero": 1}}\' (invalid literal',
        ),
        ({"startingOffsets": '{"t": {"0": 1, "0": 2}}'}, "a name is given twice"),
        ({"startingOffsets": '{"t": 5}'}, "JSON like"),
        ({"startingOffsets": "[]"}, "JSON like"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first' (Expecting value"),
        ({"startingOffsets": '{"u": {"0": 1}}'}, "option startingOffsets names the topics u, option subscribe t:"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(message)) as caught:
        parse_options(BASE | given)
    assert "\n" not in str(caught.value)


def test_a_missing_broker_is_named_as_such() -> None:
    with pytest.raises(InvalidConfig, match=r"option bootstrap\.servers is missing: host:port of a broker"):
        parse_options({"subscribe": "t"})
