"""Values decoded in the reader: `valueFormat` json, with the columns in the user's schema.

A column of the schema is a field of the JSON object, except for these::

    _key _value _topic _partition _offset      the record's own, as without valueFormat
    _timestamp _timestampType _headers
    _corrupt                                   string or binary: the value of a record that does not fit, null for
                                               all others

`mode` decides about a record that does not fit (see `json_columns`): permissive makes the fields null that do not fit,
failfast ends the task with an error that names the record. A null value is a row of null fields that fits.

Unlike with Spark's `from_json`, types are strict: 5 is not a string.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from warmlog.ranges.read_settings import Projection
from warmlog.spark.options.options import Given
from warmlog.spark.options.schema import COLUMN_TYPES, TEXT_COLUMNS, as_ddl, check_nulls, parts_of
from warmlog_protocol.errors import InvalidConfig, InvalidRecord

if TYPE_CHECKING:
    import pyarrow as pa

CORRUPT = "_corrupt"
MODES = ("permissive", "failfast")
_SHOWN_BYTES = 80

_METADATA = {f"_{name}": name for name in COLUMN_TYPES}
_PLACE = ("topic", "partition", "offset")
_SIMPLE = {
    "string": "string",
    "boolean": "bool_",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "date": "date32",
}


class TypedValues(NamedTuple):
    """How the values of one load() or stream are decoded; sent to the tasks."""

    columns: tuple[tuple[str, Any], ...]
    """Name and Spark type of each column, in the order of the schema."""
    is_failfast: bool

    @property
    def projection(self) -> Projection:
        """The record columns to read."""
        names = ["value"]
        as_text = set()
        for name, kind in self.columns:
            own = _METADATA.get(name)
            if own is not None and own not in names:
                names.append(own)
                if own == "key" and kind.simpleString() == "string":
                    as_text.add(own)
        if self.is_failfast:
            names += [name for name in _PLACE if name not in names]
        return Projection(tuple(names), frozenset(as_text))

    def decode(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Turn batches of `projection` into batches of the schema. InvalidRecord with failfast."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from warmlog.spark.read.json_columns import JsonColumns

        fields = [(name, arrow_type(kind)) for name, kind in self.columns]
        decoder = JsonColumns([field for field in fields if field[0] not in _METADATA and field[0] != CORRUPT])
        schema = pa.schema(fields)
        for batch in batches:
            value = batch.column("value")
            decoded, does_not_fit = decoder.decode(value)
            if self.is_failfast and does_not_fit.any():
                raise _misfit(batch, int(does_not_fit.argmax()))
            parsed = iter(decoded)
            arrays = []
            for name, kind in fields:
                if name == CORRUPT:
                    corrupt = pc.if_else(pa.array(does_not_fit), value, pa.scalar(None, value.type))
                    arrays.append(_as(kind, corrupt))
                elif name in _METADATA:
                    arrays.append(_as(kind, batch.column(_METADATA[name])))
                else:
                    arrays.append(next(parsed))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def typed_values(options: Given, schema: Any) -> TypedValues | None:
    """Return how values are decoded; None without valueFormat. InvalidConfig for a bad schema or other options."""
    if options.text("valueFormat") is None:
        if "mode" in options:
            raise InvalidConfig("option mode is for records that do not fit valueFormat json: give both")
        return None
    options.one_of("valueFormat", ("json",))
    if not hasattr(schema, "fields"):
        raise InvalidConfig(
            "valueFormat json needs a schema of Spark's: on Sail, read value and decode it in the query"
        )
    for name in ("columns", "includeHeaders"):
        if name in options:
            raise InvalidConfig(f"with valueFormat json the schema names the columns: leave out the option {name}")
    columns = tuple((field.name, field.dataType) for field in schema.fields)
    names = [name for name, _ in columns]
    if len(set(names)) != len(names):
        raise InvalidConfig(f"the schema names a column twice: {', '.join(names)}")
    for field in schema.fields:
        _check(field)
        check_nulls(field)
    return TypedValues(columns, is_failfast=options.one_of("mode", MODES) == "failfast")


def arrow_type(kind: Any) -> "pa.DataType":
    """Return Arrow's type for Spark's type `kind`. InvalidConfig for one that JSON is not decoded to."""
    import pyarrow as pa

    name = kind.simpleString()
    if name in _SIMPLE:
        return getattr(pa, _SIMPLE[name])()
    match kind.typeName():
        case "binary":
            return pa.binary()
        case "timestamp":
            return pa.timestamp("us", tz="UTC")
        case "timestamp_ntz":
            return pa.timestamp("us")
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "array":
            return pa.list_(pa.field("element", arrow_type(kind.elementType)))
        case "struct":
            return pa.struct([(field.name, arrow_type(field.dataType)) for field in kind.fields])
    raise InvalidConfig(f"{name} cannot be decoded from JSON: use string, and parse it in Spark")


def _check(field: Any) -> None:
    name, found = field.name, field.dataType.simpleString()
    own = _METADATA.get(name)
    if own is not None or name == CORRUPT:
        expected = COLUMN_TYPES[own] if own is not None else "string"
        if found != expected and not (found in ("string", "binary") and (own is None or own in TEXT_COLUMNS)):
            raise InvalidConfig(f"column {name} is {as_ddl(expected)}, the schema says {found}")
        return
    for part in parts_of(field):
        if part.kind.typeName() == "binary":
            raise InvalidConfig(f"column {part.path} is binary, which JSON does not have: use string")
    try:
        arrow_type(field.dataType)
    except InvalidConfig as error:
        raise InvalidConfig(f"column {name}: {error}") from None


def _as(kind: "pa.DataType", array: "pa.Array") -> "pa.Array":
    """Return a binary column as text if the schema says so, unchecked as in Spark."""
    return array if array.type == kind else array.view(kind)


def _misfit(batch: "pa.RecordBatch", row: int) -> InvalidRecord:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
    value = batch.column("value")[row].as_py()
    shown = repr(value[:_SHOWN_BYTES]) + ("…" if len(value) > _SHOWN_BYTES else "")
    return InvalidRecord(
        f"{topic}-{partition} offset {offset}: the value {shown} does not fit the schema; set mode to permissive to "
        "get null for them, and its text in a column _corrupt"
    )
