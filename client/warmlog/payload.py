"""Keeping what a connection lends."""

from warmlog_protocol.connection import Answer


def owned(answer: Answer) -> Answer:
    """`answer` with a payload that nobody else will write to: copied only if it is borrowed."""
    if answer.is_payload_owned or not answer.payload:
        return answer
    return answer._replace(payload=memoryview(bytes(answer.payload)), is_payload_owned=True)
