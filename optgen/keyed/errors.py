"""Define the error that replaces torchrec's assertions."""


class Refused(ValueError, AssertionError):
    """ValueError for an argument, and also an AssertionError, which torchrec raises there."""
