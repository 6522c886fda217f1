"""What keeps two trainers of one job from both driving it, if the first one was given up but still works.

The starts of a job's trainer are numbered. A later one claims the job where both can meet: in the ConfigMap of the
reports, at the Dask scheduler, and by its orders to workers. Whichever of them refuses the earlier start ends it.
"""

import uuid

from batchgrowth.errors import Superseded


class Fence:
    """The claim of one start of a trainer, `start` being its number; any thread may let it fall."""

    def __init__(self, start: int = 0) -> None:
        self.start, self.token = start, uuid.uuid4().hex
        self.granted = False  # by a scheduler
        self._why: Superseded | None = None

    def fall(self, why: Superseded) -> None:
        """Make every later check raise `why`, unless it fell before."""
        self._why = self._why or why

    def check(self) -> None:
        """Raises Superseded if a later start has taken over."""
        if self._why is not None:
            raise self._why
