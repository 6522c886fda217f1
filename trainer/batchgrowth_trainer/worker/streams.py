"""Standard output and error that cannot end a training: output that nobody takes is dropped.

A reader closes its pipe (`batchgrowth run … | head -3`), a terminal is closed, the disk of a redirected output is full.
Each print would then raise OSError: in the display, and in users' losses and data sets, here and in workers.
This module imports only Python's own modules, so that a command can begin with it.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

Lost = Callable[[str, OSError], None]
"""Called once with a stream's name, such as `stdout`, and the error of its first write that failed."""


class _LastingFile(io.FileIO):
    """A file whose writes do not fail: after the first error, its descriptor leads to /dev/null."""

    def __init__(self, descriptor: int, lost: Callable[[OSError], None]) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._lost = lost

    def write(self, data: Any, /) -> int:
        """Write the data, or drop it."""
        try:
            return super().write(data)
        except OSError as error:
            self.give_up(error)
            return memoryview(data).nbytes

    def give_up(self, error: OSError) -> None:
        """Let the descriptor lead to /dev/null from now on."""
        # The descriptor stays, because programs that users' code starts write to it too.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)
        self._lost(error)


def let_streams_last(lost: Lost = lambda _name, _error: None) -> dict[str, TextIO]:
    """Let writes to sys.stdout and sys.stderr succeed even if nobody takes them, and return the former streams.

    A stream that has no descriptor, such as a notebook's, stays as it is.
    """
    before: dict[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in before.items():
        made = _lasting(stream, name, lost)
        if made is not None:
            setattr(sys, name, made)
    return before


class Output:
    """A command's stdout and stderr. The function that `tell_by` sets gets a line if one can no longer be written."""

    def __init__(self) -> None:
        self._tell: Callable[[str], None] | None = None
        self._lines: list[str] = []

    def lost(self, name: str, error: OSError) -> None:
        """Say which stream is lost: on stderr, unless that is the stream, and by the function that `tell_by` sets."""
        line = (
            f"{name} cannot be written any more ({error.strerror}), and this run goes on without it; history.csv in "
            f"its folder shows its progress, and kill {os.getpid()} ends it with a checkpoint"
        )
        if name != "stderr":
            print(line, file=sys.stderr)  # noqa: T201  (where a command prints its errors)
        if self._tell is None:
            self._lines.append(line)
        else:
            self._tell(line)

    def tell_by(self, tell: Callable[[str], None]) -> None:
        """Give the lines to `tell`, which must not print at once, since a print is under way when it is called."""
        self._tell = tell
        for line in self._lines:
            tell(line)
        self._lines.clear()


@contextmanager
def lasting_output() -> Iterator[Output]:
    """Let writes to standard output and error succeed inside the block; see `let_streams_last`."""
    output = Output()
    before = let_streams_last(output.lost)
    try:
        yield output
    finally:
        for name, stream in before.items():
            present = getattr(sys, name)
            if present is not None:  # it is None in a process that was started without it
                present.flush()
            setattr(sys, name, stream)


def _lasting(stream: TextIO | None, name: str, lost: Lost) -> TextIO | None:
    """Return a stream that lasts and writes to the descriptor of `stream`; None if `stream` has no descriptor."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        file = _LastingFile(stream.fileno(), lambda error: lost(name, error))
    except (OSError, ValueError):
        return None
    # Bytes that the stream still buffers must come before later writes; without a reader they are lost.
    try:
        stream.flush()
    except OSError as error:
        file.give_up(error)
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
