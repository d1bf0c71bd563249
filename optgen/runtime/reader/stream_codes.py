"""Place the four bits of a stream, such as its dtype code, in a 64-bit integer."""

STREAM_BITS = 15
"""All four bits of a stream."""

MAX_STREAMS = 16
"""Streams whose bits fit into 64."""


def shifted_to_stream(bits: int, stream: int) -> int:
    """Shift four bits to their stream's place; the parameter's bits are the lowest."""
    return bits << 4 * stream
