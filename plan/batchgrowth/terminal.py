"""What a command does about its terminal: characters that it cannot show, tables that do not fit, a pipe that closes, a
disk that is full, and Ctrl-C before anything has begun.
"""

import codecs
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CLOSED_PIPE = 141
"""The exit code if nobody reads the output any more, as if SIGPIPE had ended it: `batchgrowth plan … | head`."""
NOT_WRITTEN = 1
"""The exit code if the output cannot be written."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as errors.Interrupted has it."""

_REPLACE = "batchgrowth.plainly"
_PLAIN = str.maketrans(
    {"→": ">", "–": "-", "—": "-", "…": "...", "·": "*", "×": "x", "≤": "<=", "≥": ">=", "━": "-", "│": "|", "─": "-",
     "╭": "+", "╮": "+", "╰": "+", "╯": "+", "“": '"', "”": '"', "’": "'"}
)  # fmt: skip
"""The signs of our output, and what stands for them in an encoding that lacks them."""
MOST_ROWS = 40
"""The most stages that a table shows."""
_LONGEST_LINE = 1000
"""More characters than a line of a table has."""

_T = TypeVar("_T")


def say(text: str, *, end: str = "\n", err: bool = False) -> None:
    """Print the text to standard output, or to standard error."""
    print(text, end=end, file=sys.stderr if err else sys.stdout)


def on_stderr(line: str) -> None:
    """Print a line to standard error, apart from the output of a command."""
    say(line, err=True)


def first_and_last(items: Sequence[_T]) -> tuple[Sequence[_T], int, Sequence[_T]]:
    """Return the first items of a table of at most MOST_ROWS items, how many it then hides, and its last items."""
    hidden = len(items) - MOST_ROWS
    if hidden <= 0:
        return items, 0, ()
    half = MOST_ROWS // 2
    return items[:half], hidden, items[half + hidden :]


def is_too_wide(table: "Table", console: "Console") -> bool:
    """Return whether the terminal is too narrow for the table."""
    return console.measure(table, options=console.options.update(max_width=_LONGEST_LINE)).minimum > console.width


def plainly(error: UnicodeError) -> tuple[str, int]:
    """Return what replaces the characters that an encoding lacks: the nearest sign, else a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end].translate(_PLAIN)
    return lost.encode("ascii", "replace").decode("ascii"), error.end


def open_what_is_closed() -> None:
    """Open standard input, output and error on the null device if the parent process has closed them.

    The next file to be opened would otherwise get one of their numbers, and what a library prints would go into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # open() takes the lowest free number, which is this one. Programs that this process starts inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def print_plainly() -> None:
    """Let standard output and standard error replace the characters that their encodings lack."""
    codecs.register_error(_REPLACE, plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_REPLACE)


def forget_an_unknown_size() -> None:
    """Remove the variables COLUMNS and LINES if they are 0, as from a terminal that does not know its size.

    rich would print nothing in 0 columns.
    """
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name) == "0":
            del os.environ[name]


def run_command(command: Callable[[], object]) -> NoReturn:
    """Run the command and exit with its code, after everything that it printed is written.

    A closed pipe ends the command without a word. If the output cannot be written, one line says so.
    """
    print_plainly()
    forget_an_unknown_size()
    code: str | int | None = 0
    try:
        try:
            command()
        except SystemExit as end:
            code = end.code
            if isinstance(end.__context__, BrokenPipeError):  # typer and rich exit with 1 then
                code = CLOSED_PIPE
        except KeyboardInterrupt:
            say("stopped", err=True)
            code = INTERRUPTED
        # Python's own flush at its end would come too late to tell of an error.
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
        code = CLOSED_PIPE
    except OSError as error:
        # Printing raises here, in rich or in typer. Any other error is the command's own and keeps its traceback.
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        raised_in = frame.f_globals["__name__"]
        if raised_in != __name__ and raised_in.partition(".")[0] not in ("rich", "typer"):
            raise
        _give_up(sys.stdout)
        _say_that_it_is_lost(error)
        code = code or NOT_WRITTEN
    sys.exit(code)


def _give_up(stream: TextIO) -> None:
    """Redirect the stream to the null device, so that Python's own flush at its end cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _say_that_it_is_lost(error: OSError) -> None:
    reason = (error.strerror or "unknown reason").lower()
    try:
        say(f"the output cannot be written ({reason}); give it a place with space", err=True)
        sys.stderr.flush()
    except OSError:
        return  # there is nobody to tell


def stop_at_once_on_interrupt() -> None:
    """Let Ctrl-C end this process with one line, also while it imports libraries, which may swallow an exception.

    A training replaces this as soon as it has something to save.
    """
    signal.signal(signal.SIGINT, _stop_at_once)


def _stop_at_once(_number: int, _frame: object) -> NoReturn:
    try:
        os.write(2, b"stopped\n")  # a print() that the signal has interrupted allows no other inside it
        sys.stdout.flush()
    finally:
        # The flush fails if the signal came while the output was being written.
        os._exit(INTERRUPTED)
