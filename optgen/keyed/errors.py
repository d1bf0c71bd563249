"""Define the error that replaces torchrec's assertions."""


class Refused(ValueError, AssertionError):
    """Error for a wrong argument: a ValueError, and an AssertionError as torchrec raises."""
