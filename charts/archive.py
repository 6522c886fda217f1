"""A chart as Helm packs it: a gzipped tar archive. The same files give the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping


def packed(name: str, files: Mapping[str, bytes]) -> bytes:
    """Return the archive of the chart with that name; `files` are its files by their path within it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(files.items(), key=lambda file: (file[0] != "Chart.yaml", file[0])):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)
