"""Columns of Arrow, pandas and polars as the lists that `send_many` sends. pyarrow is imported when one is passed."""

import sys
from typing import TYPE_CHECKING, Any, Protocol

from warmlog.extras import install_hint

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowArray(Protocol):
    """One array with Arrow's C interface, such as `pyarrow.Array`."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class ArrowStream(Protocol):
    """Anything else with Arrow's C interface: a chunked column, a polars Series, a table, a DataFrame."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def pyarrow_for(what: str) -> Any:
    """Return pyarrow. ModuleNotFoundError that says how to install it, if it is missing; `what` needs it."""
    try:
        import pyarrow
    except ModuleNotFoundError as missing:
        text = f"{what} needs pyarrow and numpy: {install_hint('arrow')}"
        raise ModuleNotFoundError(text, name=missing.name) from None
    return pyarrow


def is_pandas(kind: str, items: object) -> bool:
    """Whether `items` is a pandas object of this class. Does not import pandas."""
    pandas = sys.modules.get("pandas")
    found = getattr(pandas, kind, None)
    return found is not None and isinstance(items, found)


def check_polars_type(name: str, dtype: object) -> None:
    """Raise TypeError for a polars column of Python objects: to Arrow polars gives their addresses as bytes."""
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(dtype, polars.Object):
        raise TypeError(f"{name}: a column of Python objects: cast it to text, bytes or numbers first")


def is_column(items: object) -> bool:
    """Whether `items` is a column of Arrow, pandas or polars, to be converted as a whole."""
    return hasattr(items, "__arrow_c_stream__") or hasattr(items, "__arrow_c_array__") or is_pandas("Series", items)


def bytes_of_column(name: str, items: Any) -> list[bytes | None]:
    """Return a column of bytes or text as a list: text as UTF-8, null as None. TypeError for another type."""
    if is_pandas("Series", items) and items.dtype == object:
        plain = list(items)
        if set(map(type, plain)) <= {bytes, type(None)}:
            return plain
    return bytes_of_array(name, _array(name, items, "bytes or text"))


def bytes_of_array(name: str, array: "pa.Array | pa.ChunkedArray") -> list[bytes | None]:
    """As `bytes_of_column`, from an array of pyarrow."""
    import pyarrow as pa

    array = decoded(array)
    if pa.types.is_null(array.type):
        return [None] * len(array)
    if not (is_text(array.type) or is_bytes(array.type)):
        is_table = pa.types.is_struct(array.type)
        hint = ": take one column, or send rows with send_frame" if is_table else ""
        raise TypeError(f"{name}: a column of bytes or text expected, not of {array.type}{hint}")
    wide = array.cast(pa.large_string()) if is_text(array.type) else array
    found: list[bytes | None] = wide.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist()
    return found


def timestamps_of_column(name: str, items: Any, now_ms: int) -> list[int]:
    """Return a column of timestamps, dates or integer milliseconds as milliseconds; `now_ms` for null."""
    if is_pandas("Series", items) and items.dtype == "int64":
        return list(items)
    return timestamps_of_array(name, _array(name, items, "timestamps or integers"), now_ms)


def timestamps_of_array(name: str, array: "pa.Array | pa.ChunkedArray", now_ms: int) -> list[int]:
    """As `timestamps_of_column`, from an array of pyarrow. A fraction of a millisecond is cut off."""
    import pyarrow as pa

    check_timestamps(name, array.type)
    from pyarrow.compute import CastOptions

    try:
        if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
            array = array.cast(options=CastOptions(pa.timestamp("ms"), allow_time_truncate=True))
        found: list[int] = array.cast(pa.int64()).fill_null(now_ms).to_numpy().tolist()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name}: {error}") from None
    return found


def check_timestamps(name: str, found: "pa.DataType") -> None:
    """Raise TypeError unless this type can be a record's time."""
    from pyarrow import types

    if not any(is_right(found) for is_right in (types.is_timestamp, types.is_date, types.is_integer, types.is_null)):
        raise TypeError(f"{name}: timestamps or integer milliseconds since 1970 expected, not {found}")


def is_text(found: "pa.DataType") -> bool:
    """Whether this is one of Arrow's types of text."""
    from pyarrow import types

    return any(is_kind(found) for is_kind in (types.is_string, types.is_large_string, types.is_string_view))


def is_bytes(found: "pa.DataType") -> bool:
    """Whether this is one of Arrow's types of bytes."""
    from pyarrow import types

    kinds = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(is_kind(found) for is_kind in kinds)


def decoded(array: Any) -> Any:
    """Return the array without dictionary encoding, which categorical columns have."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        return array
    found = array.type.value_type
    wanted = pa.large_string() if is_text(found) else pa.large_binary() if is_bytes(found) else found
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([decoded(chunk) for chunk in array.chunks], type=wanted)
    return array.dictionary.cast(wanted).take(array.indices)


def _array(name: str, items: Any, expected: str) -> Any:
    pa = pyarrow_for(f"{name} as {type(items).__module__.partition('.')[0]}.{type(items).__name__}")
    check_polars_type(name, getattr(items, "dtype", None))
    try:
        if is_pandas("Series", items):
            return pa.array(items, from_pandas=True)
        if hasattr(items, "__arrow_c_array__"):
            return pa.array(items)
        return pa.chunked_array(items)
    except pa.ArrowException as error:
        dtype = getattr(items, "dtype", type(items).__name__)
        raise TypeError(f"{name}: a column of {expected} expected, not of {dtype}: {error}") from None
