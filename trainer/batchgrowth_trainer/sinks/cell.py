"""The live display in a notebook: one output of the cell, replaced while the run goes on."""

import io
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event, Waiting
from batchgrowth_trainer.sinks.live import Live
from batchgrowth_trainer.sinks.wording import note_of

MOST_NOTES = 8
WIDTH = 100  # characters
_PAGE = (
    "<pre style=\"font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace; line-height: 1.3; margin: 0; "
    'white-space: pre; overflow-x: auto">{code}</pre>'
)


class Cell(Live):
    """The live display with the newest notes below it; `show` puts a picture in the place of the one before."""

    refresh_seconds = 1 / 4

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, show: Callable[["Picture"], None] | None = None
    ) -> None:
        super().__init__(Console(), clock)
        self._show_picture = show or _shown_by_ipython()
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._waiting = ""
        self._drawn: RenderableType = ""

    def handle(self, event: Event) -> None:
        """See Sink."""
        if isinstance(event, HistoryRow):
            self._waiting = ""
        super().handle(event)

    def update(self, renderable: RenderableType, *, refresh: bool) -> None:
        """See Shown."""
        self._drawn = renderable
        if refresh:
            self._draw()

    def stop(self) -> None:
        """See Shown."""

    def _open(self, picture: RenderableType) -> "Cell":
        self.update(picture, refresh=True)
        return self

    def _note(self, event: Event) -> None:
        line = note_of(event)
        if line is None:
            return
        if isinstance(event, Waiting):
            self._waiting = line
        else:
            self._notes.append(line)
        self._draw()

    def _draw(self) -> None:
        notes = [Text(line, style="dim") for line in (*self._notes, self._waiting) if line]
        self._show_picture(Picture(Group(*([self._drawn] if self._drawn else []), *notes)))


class Picture:
    """What rich can draw, as HTML and as plain text."""

    def __init__(self, drawn: RenderableType) -> None:
        console = Console(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False, color_system="truecolor")
        console.print(drawn, soft_wrap=False)
        self._text = console.export_text(clear=False).rstrip("\n")
        self._html = console.export_html(inline_styles=True, code_format=_PAGE)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def _shown_by_ipython() -> Callable[[Picture], None]:
    from IPython.display import display

    handles: list[Any] = []

    def show(picture: Picture) -> None:
        if handles:
            handles[0].update(picture)
        else:
            handles.append(display(picture, display_id=True))

    return show
