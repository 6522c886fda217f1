"""Errors and notes in Python's words: they name the command line's options and a manifest's fields otherwise."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batchgrowth.errors import BatchGrowthError, Fault, SpecError

from batchgrowth_trainer.record.functions import NAMED
from batchgrowth_trainer.sinks.events import Event, Note, Sink

_CELL = re.compile(r"([^\s()]*ipykernel_\d+[^\s()]*\.py):(\d+)")
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_KEYWORD = re.compile(r"\bworkload\.(arguments|examples|device)\b")


@contextmanager
def reported_in_python() -> Iterator[None]:
    """Errors of the block name keyword arguments and cells of the notebook."""
    try:
        yield
    except SpecError as error:
        faults = [Fault(*map(in_python, (fault.path, fault.given, fault.remedy))) for fault in error.faults]
        raise type(error)(faults) from None
    except BatchGrowthError as error:
        error.args = (in_python(str(error)),)
        raise


def in_python(text: str) -> str:
    """The text with `output_dir` for `--output-dir`, and `Cell In[3], line 2` for the file of a cell."""
    text = _KEYWORD.sub(r"\1", text.replace("--resume", "resume=True").replace("workload.entrypoint", "workload"))
    text = _OPTION.sub(lambda found: found[1].replace("-", "_"), text)
    return _CELL.sub(lambda found: _cell(found[1], found[2]) or found[0], NAMED.sub(r"\1", text))


class InPython:
    """Hands events on to a display, with notes in Python's words."""

    def __init__(self, display: Sink) -> None:
        self._display = display

    def handle(self, event: Event) -> None:
        """See Sink."""
        self._display.handle(Note(in_python(event.text)) if isinstance(event, Note) else event)


def shell() -> Any:
    """IPython's shell if this process is a notebook's kernel, else None."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    here = get_ipython()
    return here if here is not None and hasattr(here, "kernel") else None


def _cell(file: str, line: str) -> str | None:
    here = shell()
    named = here.compile.format_code_name(file) if here is not None else None
    return f"{' '.join(named)}, line {line}" if named else None
