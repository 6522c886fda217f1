"""How a process adds: the digest of the first shard of a job, and what may explain another one.

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
    """`digest` is the SHA-256, in hex, of the first shard's gradient, change of buffers and loss, computed with the
    first weights, empty if its kernels need not be deterministic; the rest describes the process that computed it. All
    are empty if nothing was computed.

    `device` is "CPU" or the name of the GPU, `instructions` what torch uses of the processor, such as AVX512.
    """

    digest: str = ""
    device: str = ""
    processor: str = ""
    instructions: str = ""
    torch: str = ""
    threads: str = ""

    def why_not(self, other: "Arithmetic") -> str:
        """What this process has, rather than the other: "AVX2 rather than AVX512"; a guess if that is the same."""
        mine, theirs = self.to_json(), other.to_json()
        pairs = [(mine[name], theirs[name]) for name in mine if name != "digest" and mine[name] != theirs[name]]
        return ", ".join(f"{here} rather than {there}" for here, there in pairs) or _SAME

    def to_json(self) -> dict[str, str]:
        """The fields, by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """What `to_json` returned; fields of another version are left out."""
        return cls(**{field.name: str(given.get(field.name, "")) for field in fields(cls)})
