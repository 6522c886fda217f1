"""`spec.workload`: the user's code and data."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from batchgrowth.schema.model import Model, Rule
from batchgrowth.schema.patterns import CONFIG_KEY, ENTRYPOINT, FILE_PATH, ObjectName
from batchgrowth.spec.pods import map_list, once

ARGUMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MOST_FILES = 256

ArgumentText = Annotated[str, StringConstraints(max_length=1024)]


class SourceItem(Model):
    """A key of the ConfigMap, and the file that it is."""

    key: str = Field(pattern=CONFIG_KEY, min_length=1, max_length=253, description="A key of the ConfigMap. Required.")
    path: str = Field(
        pattern=FILE_PATH,
        min_length=1,
        max_length=255,
        description="The path of its file below the folder of the code. Required. Example: package/module.py.",
    )


class Source(Model):
    """A ConfigMap of the job's namespace with the modules of the workload."""

    config_map: ObjectName = Field(
        description="Name of the ConfigMap; make it immutable. Required. Example: digits-code."
    )
    items: tuple[SourceItem, ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        max_length=MOST_FILES,
        json_schema_extra=map_list("path"),
        description="The keys that become files, with their paths, for modules in packages; at most 256. "
        "Default: each key is a file of its name.",
    )

    rules: ClassVar = (
        Rule("items", "give each path once", once("items", "path"), None),  # the list type of the field says so
    )


class Workload(Model):
    """The user's code, its arguments, and the number of training examples."""

    entrypoint: str = Field(
        pattern=ENTRYPOINT,
        min_length=3,
        max_length=253,
        description="The function that returns the model, the loss, the data and the metrics, written "
        "package.module:function. It is called with the arguments below. Required. "
        "Example: batchgrowth_trainer.workloads.digits:workload.",
    )
    arguments: dict[str, ArgumentText] = Field(
        default_factory=dict,
        max_length=64,
        description="Keyword arguments of the entrypoint, at most 64; every value is a string, which the "
        'entrypoint converts. Default: none. Example: {hidden: "64"}.',
    )
    examples: int = Field(
        ge=1,
        le=2_147_483_647,
        description="How many training examples the data holds. The plan is made from this number without loading "
        "the data, and the trainer refuses data of another length. Required. Example: 50000.",
    )
    device: Literal["Auto", "CPU", "CUDA"] = Field(
        "Auto",
        description="Device of the workers: Auto uses CUDA if a worker has it and the CPU otherwise. Weights are "
        "identical only among workers of one kind. Default: Auto.",
    )

    source: Source | None = Field(
        None,
        description="Where the code comes from on Kubernetes; its folder precedes sys.path in trainer and workers. "
        "It does not change once the job has started. Ignored on a single machine, where modules lie beside the "
        "manifest. Default: none, the image has the code.",
    )

    rules: ClassVar = (
        Rule(
            "arguments",
            "give argument names of at most 63 characters",
            lambda w: all(len(name) <= 63 for name in w.arguments),
            "self.arguments.all(name, size(name) <= 63)",
        ),
        Rule(
            "arguments",
            "give argument names that are Python names: letters, digits and underscores, no digit first",
            lambda w: all(ARGUMENT_NAME.fullmatch(name) for name in w.arguments),
            None,  # the cost of a regular expression over keys of unknown length is too high an estimate for CEL
        ),
    )
