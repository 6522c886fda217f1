"""How a process adds: the digest of a job's first shard, and the facts that may explain a different digest.

Processors, versions of torch and numbers of threads add in different orders, so the last bits of a sum differ.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

_SAME = (
    "its processor, torch and threads are the same, so it has other code or data, draws random numbers that the job "
    "does not seed, or uses a kernel that is not deterministic"
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one process adds.

    `digest` is the SHA-256, in hex, of the first shard's gradient, change of buffers and loss with the first weights;
    it is empty if the job's kernels need not be deterministic. The other fields describe the process that computed it:
    `device` is "CPU" or the name of the GPU, `instructions` the vector instructions that torch uses, such as AVX512.
    All fields are empty if nothing was computed.
    """

    digest: str = ""
    device: str = ""
    processor: str = ""
    instructions: str = ""
    torch: str = ""
    threads: str = ""

    def why_not(self, other: "Arithmetic") -> str:
        """Return how this process differs from the other, "AVX2 rather than AVX512"; if no field differs, a guess."""
        mine = self.to_json()
        theirs = other.to_json()
        return ", ".join(f"{mine[name]} rather than {theirs[name]}" for name in self._facts_unlike(other)) or _SAME

    def is_unexplained(self, other: "Arithmetic") -> bool:
        """Return whether this process adds otherwise than the other although all facts are known and the same."""
        return self.digest != other.digest and bool(self.torch) and not self._facts_unlike(other)

    def _facts_unlike(self, other: "Arithmetic") -> list[str]:
        mine = self.to_json()
        theirs = other.to_json()
        return [name for name in mine if name != "digest" and mine[name] != theirs[name]]

    def to_json(self) -> dict[str, str]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the object that `to_json` wrote, ignoring fields that this version does not know."""
        return cls(**{field.name: str(given.get(field.name, "")) for field in fields(cls)})
