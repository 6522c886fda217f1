"""What the API server answered where kopf gave up: in one line, since nothing of ours is at fault."""

from __future__ import annotations

import logging

FORBIDDEN = 403
ADVICE = "give the operator's account that right: the roles of the chart have all that it needs"
_TRIES = "Request attempt"
_LEFT_OUT = (f"status={FORBIDDEN}", "Connector is closed")  # the latter by kopf itself, when it stops


def words_of(error: BaseException) -> str | None:
    """The API server's own words, with what would do; None where the error is no answer of it."""
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    if not isinstance(status, int):
        return None
    said = f"the API server answers {status}: {message or type(error).__name__}"
    return f"{said}; {ADVICE}" if status == FORBIDDEN else said


class ToldOnce(logging.Filter):
    """Leaves out what kopf logs of a refusal: each try, and a traceback at each level that it passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be logged."""
        if not record.name.startswith("kopf."):
            return True
        error = record.exc_info[1] if record.exc_info else None
        said = record.getMessage()
        is_try = said.startswith(_TRIES) and any(words in said for words in _LEFT_OUT)
        return not is_try and (error is None or words_of(error) is None)
