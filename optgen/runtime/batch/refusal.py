"""The refusal of a backend that has begun to prepare a step, and cannot take it."""


class Refusal(RuntimeError):
    """A backend cannot take a step that it was chosen for; the message says why.

    Nothing has been updated, except that states were created or moved to another device, which a
    rollback undoes. From now on the backend's `obstacle` gives the reason, so another lowering is
    chosen.
    """
