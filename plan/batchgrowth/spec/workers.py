"""How many workers a batch gets, what their pods are, and how they exchange.

Of the fields of `Workers`, only `threads` changes the weights, and `examplesPerWorker` if batch.shard is left out.
"""

import json
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from batchgrowth.choices import EXCHANGES
from batchgrowth.registry import Choice, choice_of
from batchgrowth.schema import RULES_BROKEN, Model, Rule, summary_of
from batchgrowth.spec.pods import part_of_a_pod, template_faults

MOST_WORKERS = 1000
LARGEST_TEMPLATE_BYTES = 16_384
"""The longest workers.template, as JSON."""


@choice_of(EXCHANGES)
class Exchange(Choice):
    """How gradients or weights move between the workers."""

    type: str
    timeout_seconds: int = Field(
        60,
        ge=1,
        le=3600,
        description="How long one exchange may hang before its peers count as lost; with compile at least 900. "
        "Unit: seconds. Default: 60.",
    )
    encryption: Literal["Auto", "Disabled"] = Field(
        "Auto",
        description="Auto encrypts the connections between workers, with the job's certificate, wherever workers and "
        "scheduler speak TLS: in every pod. Disabled leaves them plain, for a closed network. Default: Auto.",
    )

    compression: Literal["BFloat16", "Int8"] | None = Field(
        None,
        description="Rounds the sums of gradients, so that fewer bytes are sent: BFloat16 sends half as many; Int8, "
        "with a scale for each 1,024 numbers, sends a quarter. With AllReduce; SingleProcess rounds likewise. To send "
        "only the largest changes, use type TopK. Default: none.",
    )

    rules: ClassVar = (
        Rule(
            "compression",
            "give it with type AllReduce or SingleProcess, or leave it out",
            lambda e: e.compression is None or e.type in ("AllReduce", "SingleProcess"),
            "!has(self.compression) || self.type in ['AllReduce', 'SingleProcess']",
        ),
    )

    @property
    def replicas(self) -> int:
        """Return the number of logical replicas; 1 if every worker holds the same weights after each update."""
        return int(self.entry.replicas(self.settings))

    @property
    def patience_seconds(self) -> int:
        """Return the longest silence of a peer, in seconds: timeoutSeconds for each update of a round."""
        return self.timeout_seconds * int(self.entry.longest_round(self.settings))


class Workers(Model):
    """How many workers share a batch, and their pods."""

    examples_per_worker: int = Field(
        128,
        ge=1,
        le=16_777_216,
        description="A batch of B examples gets B // examplesPerWorker workers, but at least minimum and at "
        "most maximum. Unit: examples. Default: 128.",
    )
    minimum: int = Field(1, ge=1, le=MOST_WORKERS, description="Fewest workers to request. Default: 1.")
    maximum: int = Field(
        1,
        ge=1,
        le=MOST_WORKERS,
        description="Most workers to request; kubectl scale sets this number. Default: 1. Example: 4.",
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="Threads with which a worker computes a shard. The number changes the order of sums, and so "
        "the last bits of the weights: it belongs to the mathematics. Default: 1.",
    )
    loaders: int = Field(
        0,
        ge=0,
        le=64,
        description="Processes of each worker that read examples ahead, while it computes. They need processors and "
        "memory besides those of the worker. Default: 0, the worker reads by itself.",
    )
    loaded_ahead: int = Field(2, ge=1, le=64, description="Shards that each loader reads ahead. Default: 2.")
    wait_seconds: int = Field(
        0,
        ge=0,
        le=86_400,
        description="How long a stage may wait for its workers before it starts with those that have joined. Unit: "
        "seconds. Default: 0, not at all.",
    )
    lead_seconds: int = Field(
        300,
        ge=0,
        le=86_400,
        description="The longest time before a stage at which the operator requests the stage's workers, on "
        "Kubernetes. The operator measures how long workers take to start and requests them that much ahead; 0 "
        "requests them at the milestone itself. Unit: seconds. Default: 300.",
    )
    same_arithmetic: Literal["Preferred", "Required"] | None = Field(
        None,
        description="What happens to a worker whose sums differ from the job's in the last bits, by the digest of "
        "the job's first shard. With Preferred it trains only if too few others are ready; with Required it never "
        "trains. Both report it. Default: Preferred.",
    )
    template: dict[str, Any] = Field(
        default_factory=dict,
        max_length=16,
        json_schema_extra={
            "default": {},
            "properties": {
                "metadata": part_of_a_pod("Labels and annotations."),
                "spec": part_of_a_pod("The pod's spec."),
            },
        },
        description="An overlay on the pods of the workers, in the form of a pod template: nodeSelector, "
        "tolerations, volumes, resources and so on. At most 16 KiB as JSON. Default: none. "
        "Example: {spec: {nodeSelector: {pool: gpu}}}.",
    )

    # A rule below names one field, and each of these faults has a path of its own.
    @field_validator("template")
    @classmethod
    def _leave_what_the_operator_owns(cls, template: dict[str, Any]) -> dict[str, Any]:
        if broken := template_faults(template):
            raise PydanticCustomError(RULES_BROKEN, "{summary}", {"broken": broken, "summary": summary_of(broken)})
        return template

    rules: ClassVar = (
        Rule(
            "minimum",
            "give a number no larger than workers.maximum",
            lambda w: w.minimum <= w.maximum,
            "self.minimum <= self.maximum",
        ),
        Rule(
            "template",
            f"give at most {LARGEST_TEMPLATE_BYTES} bytes of JSON",
            lambda w: len(json.dumps(w.template, default=str)) <= LARGEST_TEMPLATE_BYTES,
            None,  # CEL cannot measure a part whose fields the schema does not know
        ),
        Rule(
            "template",
            "give only metadata and spec, as in a pod template",
            lambda w: w.template.keys() <= {"metadata", "spec"},
            None,  # the properties of the field say so already
        ),
    )

    def desired(self, batch_size: int, maximum: int | None = None) -> int:
        """Return batch_size // examplesPerWorker, clamped to minimum and maximum; an argument replaces this maximum."""
        return min(max(batch_size // self.examples_per_worker, self.minimum), maximum or self.maximum)
