"""kopf, without a client that it would load for its types alone.

kopf knows the classes of kubernetes_asyncio where that is installed, as it is beside dask-kubernetes.  Nobody here uses
them, and they would take 30 MiB and most of a second at every start.
"""

from __future__ import annotations

import sys
from typing import Any

CLIENT = "kubernetes_asyncio"

_modules: dict[str, Any] = sys.modules
_is_hidden = _modules.setdefault(CLIENT, None) is None  # Python's own way to say that there is no such module

import kopf  # noqa: E402

if _is_hidden:
    del _modules[CLIENT]

__all__ = ["kopf"]
