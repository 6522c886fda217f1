"""The manifest itself: `BatchGrowthJob`, with its metadata and its spec, checkpoints and restarts included."""

import re
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from batchgrowth.choices import EXCHANGES, GROWTH, INEXACT, LEARNING_RATES, OPTIMIZERS, SCHEDULES
from batchgrowth.extend import Promise
from batchgrowth.schema import (
    IMAGE,
    JOB_NAME,
    JOB_NAME_START,
    NAMESPACE,
    STORAGE_SIZE,
    Model,
    ObjectName,
    Rule,
    StoreUri,
)
from batchgrowth.spec.all_pods import AnnotationText, LabelText, Pods, qualified
from batchgrowth.spec.pods import RULES as POD_RULES
from batchgrowth.spec.pods import EnvFrom, EnvVar, PodVolume, PullSecret, Resources, VolumeMount, map_list, once
from batchgrowth.spec.training import Batch, Evaluation, InitialWeights, LearningRate, Optimizer, Workload
from batchgrowth.spec.workers import Exchange, Workers


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


class Restarts(Model):
    """How often a lost trainer is restarted."""

    limit: int = Field(3, ge=0, le=100, description="Restarts before the job counts as failed. Default: 3.")


LONGEST_JOB_NAME = 44
"""The most characters of a job's name.

A DaskCluster, which has the job's name, may have 53 (63 less "-scheduler"). Our own children append up to 16
(names.py), which stays below 63.
"""
GENERATED_CHARACTERS = 5
"""How many characters an API server appends to `metadata.generateName`."""


class Metadata(Model):
    """The name, labels and annotations of a job; fields that an API server adds are accepted and ignored."""

    name: str = Field(
        pattern=JOB_NAME,
        min_length=1,
        max_length=LONGEST_JOB_NAME,
        description="The name of the job: a DNS label of at most 44 characters, from which the names of its "
        "children are made. Required. Example: digits.",
    )
    generate_name: str | None = Field(
        None,
        pattern=JOB_NAME_START,
        min_length=1,
        max_length=LONGEST_JOB_NAME - GENERATED_CHARACTERS,
        description="Instead of a name: what the name begins with, which is completed when the job is made.",
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

    rules: ClassVar = (qualified("labels"), qualified("annotations"))

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Use generateName as the name until the API server completes it; a name that is given replaces it."""
        start = given.get("generateName") if isinstance(given, dict) else None
        if start is None:
            return given
        if given.get("name") is not None:
            return {key: value for key, value in given.items() if key != "generateName"}
        valid = isinstance(start, str) and re.match(JOB_NAME_START, start) and len(start) <= LONGEST_JOB_NAME
        return given | {"name": start.rstrip("-") if valid else "invalid"}  # one fault is enough


# A job with an inexact exchange cannot have these, since its gradients are not those of the weights that they move.
_MEASURED = [name for name, entry in GROWTH.items() if entry.quantity]
_GAINING = [name for name, entry in LEARNING_RATES.items() if entry.gain]
_COMPARING = [name for name, entry in OPTIMIZERS.items() if entry.compares_gradients]

_INEXACT_RULES = (
    Rule(
        "batch.growth.type",
        f"give a growth that measures nothing with exchange {', '.join(INEXACT)}: its gradients are "
        "not those of the weights that they move",
        lambda s: s.exchange.type not in INEXACT or not s.batch.growth.entry.quantity,
        f"!(self.exchange.type in {list(INEXACT)}) || !(self.batch.growth.type in {_MEASURED})",
    ),
    Rule(
        "learningRate.rule",
        f"give a rule that measures nothing with exchange {', '.join(INEXACT)}",
        lambda s: s.exchange.type not in INEXACT or s.learning_rate.entry.gain is None,
        f"!(self.exchange.type in {list(INEXACT)}) || !(self.learningRate.rule in {_GAINING})",
    ),
    Rule(
        "optimizer.type",
        f"give another optimizer than {', '.join(_COMPARING)} with exchange {', '.join(INEXACT)}: it learns from how "
        "the gradient changes along its own steps",
        lambda s: s.exchange.type not in INEXACT or not s.optimizer.entry.compares_gradients,
        f"!(self.exchange.type in {list(INEXACT)}) || !(self.optimizer.type in {_COMPARING})",
    ),
)


API_VERSION = "batchgrowth.dev/v1alpha1"
KIND = "BatchGrowthJob"
YEAR_SECONDS = 31_536_000
MOST_SHARDS = 65_536
COMPILING_SECONDS = 900
"""The shortest time after which a peer counts as lost if the model is compiled, in seconds."""

TrackerName = Literal["TensorBoard", "MLflow", "WeightsAndBiases"]


class JobSpec(Model):
    """What to train, how its batch grows, and with how many workers."""

    seed: int = Field(
        0, ge=0, le=4_294_967_295, description="Seed of the order of examples, dropout and augmentation. Default: 0."
    )
    workload: Workload = Field(description="The user's code and data. Required.")
    epochs: int = Field(ge=1, le=1_000_000, description="Passes over the training data. Required. Example: 30.")
    batch: Batch = Field(description="How many examples an update uses, and how that grows. Required.")
    learning_rate: LearningRate = Field(description="The learning rate of each update. Required.")
    optimizer: Optimizer = Field(Optimizer(), description="The optimizer. Default: SGD.")
    precision: Literal["Float32", "TensorFloat32", "BFloat16"] | None = Field(
        None,
        description="The arithmetic of the model and its loss: TensorFloat32 rounds the factors that a GPU "
        "multiplies, and is Float32 on a CPU; BFloat16 is torch's autocast. Weights, gradients and the optimizer's "
        "state are float32 either way. Default: Float32.",
    )
    compile: bool | None = Field(
        None,
        description="True compiles the model and its loss by torch.compile, which needs a C++ compiler where workers "
        "run. The last bits of the weights change. Default: false.",
    )
    deterministic: bool | None = Field(
        None,
        description="False lets a GPU use kernels that add in a different order each time, so the weights differ "
        "from run to run. True refuses an operation that has only such kernels. Default: true.",
    )
    verify: bool | None = Field(
        None,
        description="Whether workers are checked while they train: now and then, at less than 1 % of the time, all "
        "compute the same shard and compare the bits. A worker that computes wrongly is replaced and its updates are "
        "undone; code with more than one answer stops the job. For exact exchanges. Default: true.",
    )
    exchange: Exchange = Field(Exchange(), description="How gradients move between the workers. Default: AllReduce.")
    workers: Workers = Field(Workers(), description="How many workers, and their pods. Default: one.")
    checkpoint: Checkpoint = Field(
        Checkpoint(), description="When and where the state is saved. Default: every 300 seconds."
    )
    evaluation: Evaluation = Field(
        Evaluation(), description="How often the model is evaluated. Default: after each epoch."
    )
    initial_weights: InitialWeights | None = Field(
        None,
        description="The weights to start from: those of another run or of a file. Default: those of the workload's "
        "model. Example: {path: runs/pretrained, match: ByName}.",
    )
    trackers: tuple[TrackerName, ...] | None = Field(
        None,
        strict=False,
        max_length=3,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="What else records the run: TensorBoard, MLflow, WeightsAndBiases. The trainer needs the extra of "
        "each, and the library's own environment variables say where it records. Default: none. Example: [MLflow].",
    )
    suspend: bool = Field(
        False,
        description="True stops the job after a checkpoint and frees its workers; false resumes it. Default: false.",
    )
    image: str | None = Field(
        None,
        pattern=IMAGE,
        min_length=1,
        max_length=512,
        description="The container image of trainer and workers on Kubernetes, with the entrypoint. Default: "
        "the operator's own. Example: registry.example/team/trainer:1.0.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When a node pulls the image. Default: IfNotPresent."
    )
    image_pull_secrets: tuple[PullSecret, ...] = Field(
        (),
        strict=False,
        max_length=16,
        json_schema_extra=map_list("name"),
        description="Secrets for pulling the image, at most 16. Default: none.",
    )
    pods: Pods | None = Field(
        None,
        description="What the pods of scheduler, trainer and workers have in common on Kubernetes. The fields of "
        "spec take precedence over it, and workers.template over both. Default: the chart's value jobs.pods. "
        "Example: {labels: {cost-center: research}, tolerations: [{key: training, operator: Exists}]}.",
    )
    volumes: tuple[PodVolume, ...] | None = Field(
        None,
        strict=False,
        max_length=32,
        json_schema_extra=map_list("name"),
        description="Volumes of trainer and workers on Kubernetes, as in a pod, at most 32. Default: none. "
        "Example: [{name: data, persistentVolumeClaim: {claimName: images}}].",
    )
    volume_mounts: tuple[VolumeMount, ...] | None = Field(
        None,
        strict=False,
        max_length=32,
        json_schema_extra=map_list("mountPath"),
        description="Where these volumes appear, at most 32. Default: nowhere. "
        "Example: [{name: data, mountPath: /data, readOnly: true}].",
    )
    env: tuple[EnvVar, ...] | None = Field(
        None,
        strict=False,
        max_length=64,
        json_schema_extra=map_list("name"),
        description="Environment variables of trainer and workers on Kubernetes, at most 64. Default: none.",
    )
    env_from: tuple[EnvFrom, ...] | None = Field(
        None,
        strict=False,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="ConfigMaps and Secrets whose entries are environment variables of trainer and workers on "
        "Kubernetes, at most 16. Default: none. Example: [{secretRef: {name: tokens}}].",
    )
    resources: Resources | None = Field(
        None,
        description="What the trainer and each worker request on Kubernetes, and their limits. Resources that only "
        "workers need, such as GPUs, belong in workers.template. Default: 100m CPU, and 512Mi of memory for the "
        "trainer.",
    )
    service_account_name: ObjectName | None = Field(
        None,
        description="The service account of the worker pods, which the chart's value jobs.serviceAccounts must list. "
        "Default: the namespace's default account.",
    )
    operator_class: ObjectName | None = Field(
        None,
        description="Only an operator of this class runs the job. "
        "Default: the operators without a class. Example: gpu.",
    )
    active_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=YEAR_SECONDS,
        description="How long the job may be active before it fails. Unit: seconds. Default: no limit.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=YEAR_SECONDS,
        description="How long the job is kept after its end. Unit: seconds. Default: for ever.",
    )
    restarts: Restarts = Field(Restarts(), description="How often a lost trainer is restarted. Default: 3 times.")
    cluster_retention: Literal["DeleteOnFinish", "RetainOnFailure", "Retain"] = Field(
        "DeleteOnFinish",
        description="Whether the Dask cluster outlives the job: DeleteOnFinish deletes it, "
        "RetainOnFailure keeps it after a failure for inspection, Retain always keeps it. Default: DeleteOnFinish.",
    )

    rules: ClassVar = (
        *GROWTH.outer_rules("JobSpec"),
        *LEARNING_RATES.outer_rules("JobSpec"),
        *SCHEDULES.outer_rules("JobSpec"),
        *EXCHANGES.outer_rules("JobSpec"),
        *_INEXACT_RULES,
        Rule(
            "batch.shard",
            f"give a shard so large that batch.maximum has at most {MOST_SHARDS} of them",
            lambda s: s.batch.maximum <= s.shard * MOST_SHARDS,
            "self.batch.maximum <= "
            f"(has(self.batch.shard) ? self.batch.shard : self.workers.examplesPerWorker) * {MOST_SHARDS}",
        ),
        Rule(
            "evaluation.stopEarly.patience",
            "give fewer, so that patience times evaluation.everyEpochs is below spec.epochs; or remove stopEarly",
            lambda s: (
                s.evaluation.stop_early is None
                or s.evaluation.stop_early.patience * s.evaluation.every_epochs < s.epochs
            ),
            "!has(self.evaluation.stopEarly) || "
            "self.evaluation.stopEarly.patience * self.evaluation.everyEpochs < self.epochs",
        ),
        Rule(
            "imagePullSecrets",
            "give each secret once",
            once("image_pull_secrets", "name"),
            None,  # the list type of the field says so already
        ),
        *POD_RULES,
        Rule(
            "workers.sameArithmetic",
            "give Preferred, or leave it out, with deterministic: false, with which no two workers compute the same",
            lambda s: s.deterministic is not False or s.workers.same_arithmetic != "Required",
            "!has(self.deterministic) || self.deterministic || !has(self.workers.sameArithmetic) || "
            "self.workers.sameArithmetic != 'Required'",
        ),
        Rule(
            "trackers",
            "give each tracker once",
            lambda s: len(set(s.trackers or ())) == len(s.trackers or ()),
            None,  # the list type of the field says so already
        ),
    )

    @property
    def shard(self) -> int:
        """Examples per gradient shard: batch.shard if given, else workers.examplesPerWorker."""
        return self.batch.shard or self.workers.examples_per_worker

    @property
    def promise(self) -> Promise:
        """Return what the weights depend on: the exchange's promise, unless a GPU's kernels are nondeterministic."""
        if self.deterministic is False and self.workload.device != "CPU":
            return "Nondeterministic"
        promise: Promise = self.exchange.entry.promise
        return promise

    @property
    def patience_seconds(self) -> int:
        """Return how long an exchange may hang, in seconds; with `compile` this allows for compiling a shard of another
        size.
        """
        if self.compile:
            return max(self.exchange.patience_seconds, COMPILING_SECONDS)
        return self.exchange.patience_seconds


class BatchGrowthJob(Model):
    """One training job whose batch grows by a plan and whose workers follow the batch."""

    api_version: Literal["batchgrowth.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["BatchGrowthJob"] = Field(description=f"Always {KIND}.")
    metadata: Metadata = Field(description="The name, labels and annotations of the job.")
    spec: JobSpec = Field(description="What to train, how its batch grows, and with how many workers.")
    status: dict[str, Any] | None = Field(
        None, description="The operator's answer; present in files that kubectl wrote, and ignored."
    )
