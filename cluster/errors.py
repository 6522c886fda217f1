"""The one error of the test cluster."""


class HarnessError(RuntimeError):
    """A program is missing, failed to build, failed to start or exited; the message says how to fix it."""
