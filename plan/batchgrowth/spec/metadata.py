"""The name, labels and annotations of a job."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from batchgrowth.schema.model import Model
from batchgrowth.schema.patterns import JOB_NAME, NAMESPACE

LONGEST_JOB_NAME = 44
"""A DaskCluster may have 53 characters (63 less "-scheduler"), and our own children append up to 9."""

LabelText = Annotated[str, StringConstraints(max_length=63)]
AnnotationText = Annotated[str, StringConstraints(max_length=262_144)]


class Metadata(Model):
    """The name, labels and annotations of a job; fields that an API server adds are accepted and ignored."""

    name: str = Field(
        pattern=JOB_NAME,
        min_length=1,
        max_length=LONGEST_JOB_NAME,
        description="The name of the job: a DNS label of at most 44 characters, from which the names of its "
        "children are made. Required. Example: digits.",
    )
    namespace: str | None = Field(None, pattern=NAMESPACE, min_length=1, max_length=63)
    labels: dict[str, LabelText] = Field(default_factory=dict, max_length=64)
    annotations: dict[str, AnnotationText] = Field(default_factory=dict, max_length=64)
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    finalizers: Any = None
    generation: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    resource_version: Any = None
    self_link: Any = None
    uid: Any = None
