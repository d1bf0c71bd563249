"""Place a stream's dtype code in a table row."""


def in_stream(bits: int, stream: int) -> int:
    """Shift four bits to a stream's place in a 64-bit integer; the parameter's bits are lowest."""
    return bits << 4 * stream
