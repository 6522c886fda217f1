"""Where a run's workload came from: its folder, function and arguments, digests of its sources, and versions.

workload.json in the run's folder has it, so the workload can be imported from anywhere later. The sources are the
module of the entrypoint and the modules of the same folder that it imports, directly or not.
"""

import ast
import hashlib
import json
import os
import platform
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from batchgrowth.manifest.files import read_regular
from batchgrowth.spec import JobSpec
from pydantic import BaseModel, ConfigDict, ValidationError

from batchgrowth_trainer.record.functions import FUNCTION_FILE, is_function
from batchgrowth_trainer.user_errors import LIBRARIES

ORIGIN_FILE = "workload.json"
_PACKAGES = ("batchgrowth", "torch", "numpy")
_OURS = __name__.partition(".")[0]  # may be installed from a folder that is on the path
_MOST_SOURCES = 1000


class Origin(BaseModel):
    """What workload.json holds.

    `run` identifies the run, wherever its folder is moved and however often it is resumed. `folder` is where the
    entrypoint's module was found, absolute, and `relative` the same from the run's folder; both are empty if the module
    is installed, or the workload is a function without a module. `sources` has the SHA-256 of each source, by its path
    below `folder`; of an installed module, by its name.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str = ""
    entrypoint: str
    arguments: dict[str, str] = {}
    folder: str = ""
    relative: str = ""
    sources: dict[str, str] = {}
    versions: dict[str, str] = {}

    @classmethod
    def of(cls, spec: JobSpec, folders: Sequence[str], run: Path) -> "Origin":
        """Return the origin of a job's workload, whose modules are looked for in `folders` first."""
        entrypoint = spec.workload.entrypoint
        home, sources = _found(entrypoint, [*folders, *sys.path])
        return cls(
            run=uuid.uuid4().hex,
            entrypoint=entrypoint,
            arguments=dict(spec.workload.arguments),
            folder=home,
            relative=os.path.relpath(home, run.resolve()) if home else "",
            sources=sources,
            versions=versions(),
        )

    @classmethod
    def read(cls, run: Path, entrypoint: str) -> "Origin | None":
        """Return the origin in the run's folder; None if it is missing, cannot be read or is another workload's."""
        try:
            origin = cls.model_validate(json.loads(read_regular(run / ORIGIN_FILE)))
        except (OSError, ValueError, ValidationError):
            return None
        return origin if origin.entrypoint == entrypoint else None

    def to_bytes(self) -> bytes:
        """Return the content of workload.json."""
        return (json.dumps(self.model_dump(), indent=2) + "\n").encode()

    def changes(self, now: "Origin") -> list[str]:
        """Return the names of the sources that differ now, are no longer there, or are new."""
        both = sorted(self.sources.keys() | now.sources.keys())
        return [name for name in both if self.sources.get(name) != now.sources.get(name)]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which the bits of the weights depend most."""
    return dict(_versions())


@cache  # looking a package up takes milliseconds, and what is loaded does not change
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def find_workload(run: Path, spec: JobSpec, given: Sequence[Path] = ()) -> tuple[str, list[str]]:
    """Return a line for the user, which says where the workload of the run in `run` is and what has changed there, and
    a list with the folder from which to import it; the list is empty if it is installed or a function.

    The `given` folders come first, then the folder that the run remembers, then the current one. Modules of the same
    names that this process has imported from elsewhere are forgotten.
    """
    entrypoint = spec.workload.entrypoint
    if is_function(entrypoint):
        return f"{run}: its workload is the function {entrypoint.partition(':')[2]}, kept in {run / FUNCTION_FILE}", []
    origin = Origin.read(run, entrypoint)
    folders = [str(folder.resolve()) for folder in given]
    if origin is not None and origin.folder:
        folders += [origin.folder, str((run / origin.relative).resolve())]
    folders.append(str(Path.cwd()))
    now = Origin.of(spec, folders, run)
    place = entrypoint
    home: list[str] = []
    if now.folder:
        _prefer(now)
        home.append(now.folder)
        module = entrypoint.partition(":")[0].replace(".", "/")
        file = f"{module}.py"
        if file not in now.sources:
            file = f"{module}/__init__.py"
        place = str(Path(now.folder) / file)
    line = f"{run}: its workload is {place}"
    if origin is None:
        return line, home
    changed = origin.changes(now)
    if changed:
        line += f"; changed since the run: {', '.join(changed)}"
    others = [f"{name} {now.versions[name]} instead of {before}" for name, before in origin.versions.items()
              if now.versions.get(name, before) != before]  # fmt: skip
    if others:
        line += f"; {', '.join(others)}"
    return line, home


def _prefer(origin: Origin) -> None:
    """Put the origin's folder first if it is on the path, and forget modules of the same names from elsewhere."""
    if origin.folder in sys.path[1:]:
        sys.path.remove(origin.folder)
        sys.path.insert(0, origin.folder)
    home = Path(origin.folder).resolve()
    tops = {Path(name).parts[0].removesuffix(".py") for name in origin.sources}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in tops or file is None:
            continue
        if not Path(file).resolve().is_relative_to(home):
            del sys.modules[name]


# --- The sources of a workload, found without running them ---


def _found(entrypoint: str, folders: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the folder of the entrypoint's module and the digests of its sources; see Origin."""
    if is_function(entrypoint):
        return "", {}
    module = entrypoint.partition(":")[0]
    for folder in folders:
        home = Path(folder or ".").resolve()
        if _file_of(home, module) is None:
            continue
        # A folder on the path that holds this package, or what pip has installed, is no workload's own.
        if module.partition(".")[0] == _OURS or not LIBRARIES.isdisjoint(home.parts):
            break
        return str(home), _digests(home, module)
    file = _installed(module)
    return "", {} if file is None else {module: _sha256(file)}


def _installed(module: str) -> Path | None:
    """Return the file of an installed module, without importing the packages that it is in; None if there is none."""
    top, _, rest = module.partition(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    file = Path(spec.origin)
    return _file_of(file.parent, rest) if rest else file


def _file_of(home: Path, module: str) -> Path | None:
    """Return the file of a module below the folder; None if there is none."""
    path = home.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    return None


def _digests(home: Path, module: str) -> dict[str, str]:
    """Return the digest of each source below the folder that the module needs, by its path."""
    found: dict[str, str] = {}
    seen = {module}
    waiting = [module]
    while waiting and len(found) < _MOST_SOURCES:
        name = waiting.pop()
        file = _file_of(home, name)
        if file is None:
            continue
        found[file.relative_to(home).as_posix()] = _sha256(file)
        # Importing a.b.c also runs a and a.b.
        parts = name.split(".")
        parents = {".".join(parts[:count]) for count in range(1, len(parts))}
        wanted = {*_imports(file, name), *parents} - seen
        seen |= wanted
        waiting += sorted(wanted)
    return dict(sorted(found.items()))


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _imports(file: Path, module: str) -> Iterator[str]:
    """Yield the names of modules that the file may import, wherever in it; `from a import b` may import a.b."""
    try:
        tree: Any = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
            else:
                yield from (alias.name for alias in node.names)
