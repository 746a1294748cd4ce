"""JSON records become typed columns, each in its own row, whatever the others are."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.spark.read.json_columns import JsonColumns

MISFIT = ("does not fit", None, None, None)
FIELDS = [("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())]


def decoded(values: list[bytes | None], fields: list[tuple[str, pa.DataType]] = FIELDS) -> list[tuple[Any, ...]]:
    """A tuple of columns for each record, which begins with "does not fit" for those that do not."""
    columns, does_not_fit = JsonColumns(fields).decode(pa.array(values, pa.binary()))
    for column, (_, kind) in zip(columns, fields, strict=True):
        column.validate(full=True)
        assert (column.type, len(column)) == (kind, len(values))
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    return [("does not fit", *row) if is_bad else row for row, is_bad in zip(rows, does_not_fit, strict=True)]


def test_fields_are_found_by_name_missing_ones_are_null_and_others_passed_over() -> None:
    assert decoded(
        [b'{"v": 1, "id": 7, "more": {"a": [1, "}"]}}', b"{}", None, b' {"name":\n "gr\xc3\xb6\xc3\x9fe"}\n'],
    ) == [(7, None, 1.0), (None, None, None), (None, None, None), (None, "größe", None)]
    assert decoded([]) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"  ",
        b"null",
        b"5",
        b"[]",
        b'"{}"',
        b"{",
        b"}",
        b"{}{}",
        b"{}\n{}",
        b'{"id": 1}{"id": 2}',
        b'{"id": "1"}',
        b'{"id": 1.5}',
        b'{"id": 9223372036854775808}',
        b'{"name": 5}',
        b'{"id": 1, "id": 2}',
        b'{"name": "a\nb"}',
        b'{"a": {}',
        b'{"name": "}',
        b"{\xff}",
    ],
)
def test_a_record_that_does_not_fit_takes_no_other_with_it(bad: bytes) -> None:
    good = [b'{"id": %d}' % number for number in range(5)]
    rows = [(number, None, None) for number in range(5)]
    assert decoded([*good[:3], bad, *good[3:]]) == [*rows[:3], MISFIT, *rows[3:]]
    assert decoded([bad]) == [MISFIT]
    assert decoded([b"", *good, b"{}{}", bad]) == [MISFIT, *rows, MISFIT, MISFIT]


def test_a_record_that_does_not_fit_keeps_the_fields_that_do() -> None:
    wrong_id, wrong_name = b'{"id": "4", "name": "four", "v": 4.5}', b'{"v": 5.5, "id": 5, "name": 5}'
    assert decoded([b'{"id": 3}', wrong_id, b"{}", wrong_name, b'{"id": 6, "v": 1} x']) == [
        (3, None, None),
        ("does not fit", None, "four", 4.5),
        (None, None, None),
        ("does not fit", 5, None, 5.5),
        MISFIT,
    ]


pieces = st.sampled_from([b"{", b"}", b'{"id": 1}', b"[", b"]", b",", b'"', b"\n", b" ", b'"id":', b"2", b"{}"])
good_records = st.builds(
    lambda id_, name, v: json.dumps({"id": id_, "name": name, "v": v}).encode(),
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.none(), st.text(max_size=5)),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
)
records = st.one_of(st.none(), good_records, st.lists(pieces, max_size=6).map(b"".join))


@given(values=st.lists(records, max_size=12))
def test_each_record_has_the_row_that_it_has_alone(values: list[bytes | None]) -> None:
    alone = [decoded([value])[0] for value in values]
    assert decoded(values) == alone
    for value, row in zip(values, alone, strict=True):
        try:
            document = json.loads(value or b"{}")
        except ValueError:
            document = None
        if len(row) == len(FIELDS) and isinstance(document, dict):
            assert row == tuple(document.get(name) for name, _ in FIELDS)


def test_every_type_is_parsed_nested_ones_too() -> None:
    fields = [
        ("small", pa.int8()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.field("element", pa.date32()))),
        ("nested", pa.struct([("a", pa.float32()), ("b", pa.list_(pa.field("element", pa.string())))])),
    ]
    record = (
        b'{"small": -3, "flag": true, "price": 12.30, "day": "2026-11-21", "at": "2026-11-21T10:00:00.5+02:00", '
        b'"local": "2026-11-21 10:00:00", "list": ["2026-11-21", null], "nested": {"a": 1.5, "b": ["x", null]}}'
    )
    expected = (
        -3,
        True,
        Decimal("12.30"),
        date(2026, 11, 21),
        datetime(2026, 11, 21, 8, 0, 0, 500_000, UTC),
        datetime(2026, 11, 21, 10),
        [date(2026, 11, 21), None],
        {"a": 1.5, "b": ["x", None]},
    )
    wrong = [b'{"small": 200}', b'{"day": "yesterday"}', b'{"at": 5}', b'{"nested": []}', b'{"list": {"a": 1}}']
    assert decoded([record, *wrong, b"{}"], fields) == [
        expected,
        *[("does not fit", *[None] * len(fields))] * len(wrong),
        (None,) * len(fields),
    ]
