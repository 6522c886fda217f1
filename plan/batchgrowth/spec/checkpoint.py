"""Where and when the state of a training is saved, and how often a lost trainer is restarted from it."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.schema import STORAGE_SIZE, Model, ObjectName, Rule, StoreUri


class Volume(Model):
    """A persistent volume claim, which exists in the job's namespace or which the operator makes for the job."""

    claim_name: ObjectName | None = Field(
        None,
        description="Name of a PersistentVolumeClaim in the namespace of the job. Default: none, give size instead. "
        "Example: ckpt.",
    )
    size: str | None = Field(
        None,
        pattern=STORAGE_SIZE,
        max_length=10,
        description="Size of the claim that the operator makes for this job, and that is deleted with it. It may grow "
        "if its class allows that. Default: none, give claimName instead. Example: 10Gi.",
    )
    storage_class_name: ObjectName | None = Field(
        None,
        description="Name of the StorageClass of the claim that the operator makes. Default: the cluster's default "
        "class. Example: fast.",
    )

    rules: ClassVar = (
        Rule(
            "size",
            "give either claimName or size",
            lambda v: (v.claim_name is None) != (v.size is None),
            "has(self.claimName) != has(self.size)",
        ),
        Rule(
            "storageClassName",
            "give size too, or remove storageClassName",
            lambda v: v.storage_class_name is None or v.size is not None,
            "!has(self.storageClassName) || has(self.size)",
        ),
    )


class Checkpoint(Model):
    """When and where the state of the training is saved."""

    every_seconds: int = Field(
        300, ge=1, le=86_400, description="Time from one checkpoint to the next. Unit: seconds. Default: 300."
    )
    keep: int = Field(3, ge=1, le=100, description="How many of the newest checkpoints are kept. Default: 3.")
    volume: Volume | None = Field(
        None,
        description="Where checkpoints are kept on Kubernetes. Default: none; if uri is not given either, a lost "
        "trainer starts over. On a single machine they go to the output directory.",
    )
    uri: StoreUri | None = Field(
        None,
        description="The object store that keeps checkpoints and results on Kubernetes, in place of a volume: a prefix "
        "for this job alone. Ignored on a single machine. Default: none. Example: s3://bucket/runs/digits.",
    )
    secret_name: ObjectName | None = Field(
        None,
        description="Name of a Secret in the namespace of the job whose entries are the trainer's environment, such as "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL. Default: none; the store knows the trainer's "
        "service account.",
    )

    ca_config_map: ObjectName | None = Field(
        None,
        description="Name of a ConfigMap in the namespace of the job whose entry ca.crt has, as PEM, the certificates "
        "of CAs that the trainer trusts for the object store, besides the usual ones. Default: what the administrator "
        "has set.",
    )

    rules: ClassVar = (
        Rule(
            "uri",
            "give either volume or uri, not both",
            lambda c: c.volume is None or c.uri is None,
            "!has(self.volume) || !has(self.uri)",
        ),
        Rule(
            "secretName",
            "give uri too, or remove secretName",
            lambda c: c.secret_name is None or c.uri is not None,
            "!has(self.secretName) || has(self.uri)",
        ),
        Rule(
            "caConfigMap",
            "give uri too, or remove caConfigMap",
            lambda c: c.ca_config_map is None or c.uri is not None,
            "!has(self.caConfigMap) || has(self.uri)",
        ),
    )

    @property
    def is_kept(self) -> bool:
        """Return True if checkpoints outlive the trainer's pod."""
        return self.volume is not None or self.uri is not None


class Restarts(Model):
    """How often a lost trainer is restarted."""

    limit: int = Field(3, ge=0, le=100, description="Restarts before the job counts as failed. Default: 3.")
