"""Texts that are sent to a broker: msgpack and JSON carry them as UTF-8, which lone surrogates do not have."""


def is_encodable(text: str) -> bool:
    """Return whether `text` has UTF-8. Arguments of a command that are not UTF-8 come as text that has none."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def checked_text(value: str, what: str) -> str:
    """Return `value`; TypeError if it is not a str, ValueError if it has no UTF-8. `what` begins the message."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {value!r} ({type(value).__name__})")
    if not is_encodable(value):
        raise ValueError(f"{what} must be text that UTF-8 can encode, not {value!r}")
    return value
