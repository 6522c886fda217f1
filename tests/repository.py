"""The files of the repository, also where git does not tell them: in an archive, or in a folder of another user."""

from __future__ import annotations

import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
IGNORING = (ROOT, ROOT / "charts")
"""The folders with a .gitignore."""


def tracked(root: Path = ROOT, *, others: bool = False) -> list[Path]:
    """Return every file that git tracks, sorted, and the `others` that it would track.

    If it tracks none there, return every file except those that it would ignore.
    """
    listed = _of_git(root)
    if listed and others:
        listed += _of_git(root, "--others", "--exclude-standard")
    return sorted(path for path in listed or _of_the_folder(root) if path.is_file())


def _of_git(root: Path, *which: str) -> list[Path]:
    try:
        done = subprocess.run(["git", "ls-files", "-z", *which], cwd=root, capture_output=True, check=False, text=True)
    except FileNotFoundError:
        return []
    return [root / name for name in done.stdout.split("\0") if name]


def _of_the_folder(root: Path) -> list[Path]:
    names, places = {".git"}, set()
    for folder in IGNORING:
        for line in (folder / ".gitignore").read_text(encoding="utf-8").splitlines():
            if line.startswith("/"):
                places.add((folder.relative_to(ROOT) / line.strip("/")).as_posix())
            elif not line.startswith("#"):
                names.add(line.strip("/"))

    def stays(path: Path) -> bool:
        where = path.relative_to(root).as_posix()
        return not any(fnmatch(path.name, name) for name in names) and not any(fnmatch(where, one) for one in places)

    found: list[Path] = []
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if stays(Path(place) / name)]
        found += [path for name in files if stays(path := Path(place) / name)]
    return found
