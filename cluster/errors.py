"""What goes wrong with a cluster."""


class HarnessError(RuntimeError):
    """A program is missing, could not be built, did not start or ended by itself; the message says what would do."""
