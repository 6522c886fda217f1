"""The mistakes of docs/mistakes.toml, each as a folder with a module and a manifest, as a user would have it."""

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import batchgrowth.errors

from docs.mistakes import START, read_mistakes

MANIFEST = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {{name: mine}}
spec:
  workload: {{entrypoint: "{entrypoint}", examples: 20, device: CPU}}
  epochs: 1
  batch: {{initial: 8, maximum: 8, shard: 4}}
  learningRate: {{initial: "0.1"}}
  exchange: {{type: {exchange}}}
  workers: {{examplesPerWorker: 4, minimum: 1, maximum: 2}}
"""
_NUMBERS = count(1)
HERE = "  # here"


@dataclass(frozen=True, slots=True)
class Written:
    """A mistake in a folder: the manifest, the changes of it, the error, and what its text must have."""

    manifest: Path
    changes: tuple[str, ...]
    error: type[Exception]
    says: tuple[str, ...]


def write(name: str, folder: Path, exchange: str = "SingleProcess") -> Written:
    """Writes the mistake of that name into a folder. Its module has a name of its own: processes are reused."""
    mistake = read_mistakes()[name]
    module = f"mine_{next(_NUMBERS)}"
    sources = {f"{module}.py": f"{START}\n\n{mistake.code.strip()}\n"}
    if mistake.other:
        sources[f"{module}_other.py"] = f"{mistake.other.strip()}\n"
    lines: list[str] = []
    for file, source in sources.items():
        text = source.replace("{module}", module)
        (folder / file).write_text(text.replace(HERE, ""))
        lines += [f"{folder / file}:{n}" for n, line in enumerate(text.splitlines(), 1) if line.endswith(HERE)]
    entrypoint = mistake.entry if re.search(r"[.:]", mistake.entry) else f"{module}:{mistake.entry}"
    manifest = folder / "job.yaml"
    manifest.write_text(MANIFEST.format(entrypoint=entrypoint, exchange=exchange))
    error: Any = getattr(batchgrowth.errors, mistake.error)
    return Written(manifest, tuple(mistake.set), error, (*lines, *mistake.says))


def missing_in(text: str, written: Written) -> list[str]:
    """What the text of the error lacks."""
    return [part for part in written.says if not re.search(rf"{re.escape(part)}(?!\d)", text)]
