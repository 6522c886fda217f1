"""The API server's refusals of kopf's requests, as one line each, since a traceback of ours would explain nothing."""

import logging

FORBIDDEN = 403
REMEDY = "grant it to the operator's account: the chart's roles have every permission that the operator needs"
_ATTEMPT = "Request attempt"
_OMITTED = (f"status={FORBIDDEN}", "Connector is closed")  # kopf closes the connector when it stops


def refusal_message(error: BaseException) -> str | None:
    """The API server's message and a remedy; None if the error is not a response of the API server."""
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    if not isinstance(status, int):
        return None
    refusal = f"the API server answers {status}: {message or type(error).__name__}"
    return f"{refusal}; {REMEDY}" if status == FORBIDDEN else refusal


class RefusalFilter(logging.Filter):
    """Drops kopf's own records of a refusal: one per attempt, and a traceback at each level that it passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record."""
        if not record.name.startswith("kopf."):
            return True
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage()
        is_attempt = text.startswith(_ATTEMPT) and any(omitted in text for omitted in _OMITTED)
        return not is_attempt and (error is None or refusal_message(error) is None)
