"""Secrets in texts that others wrote: the output of a workload, an error of its libraries, an event about its pod.

Such texts are shown in a job's status and events, which more people may read than its logs. What looks like a secret is
replaced; a secret that looks like any other word is not recognized.
"""

import re
import string

REDACTED = "[redacted]"

_END_OF_KEY = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY-----")
"""Of a key whose beginning was cut off: what Kubernetes keeps of a log is its end."""
_OF_KEYS = string.ascii_letters + string.digits + "+/=" + string.whitespace

_NAMED = (
    r"password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|"
    r"client[_-]?secret|credentials?|authorization|signature|sig"
)
_KNOWN = (
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?",
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # a JSON web token, such as a service account's
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"gh[opsur]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}",
    r"hf_\w{30,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}",
)
_SECRETS = [
    *((re.compile(known), REDACTED) for known in _KNOWN),
    (re.compile(r"(://)[^\s/@\"']*:[^\s/@\"']*(@)"), rf"\1{REDACTED}\2"),
    (re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/=-]{16,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(rf"((?:{_NAMED})[\"']?\s*[:=]\s*[\"']?)(?!\[redacted)(?:[^\s\"',;&)\]}}]{{6,}})", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
]


def redacted(text: str) -> str:
    """The text with REDACTED in place of what looks like a password, a token or a key."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    end = _END_OF_KEY.search(text)
    if end is None:
        return text
    return redacted(f"{text[: end.start()].rstrip(_OF_KEYS)} {REDACTED}{text[end.end() :]}")
