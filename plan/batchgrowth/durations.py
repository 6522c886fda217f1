"""Lengths of time as text."""

_MINUTE = 60
_HOUR = 3600


def duration(seconds: float) -> str:
    """`12.3 s`, `4 min 05 s` or `2 h 07 min`."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
