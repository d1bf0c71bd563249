"""The error where torchrec has an assertion."""


class Refused(ValueError, AssertionError):
    """An argument that torchrec asserts about: a ValueError, which code for torchrec also knows."""
