"""A zoo of small workloads: each equals plain torch, and has the same weights for one worker and for three.

The reference is a loop of plain torch: it accumulates the gradients of the shards of a batch, then takes a step of
torch's optimizer. Buffers move by the mean change of the shards, as docs/architecture.md says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import zoo
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from batchgrowth.shards import lay_out, shard_bounds
from batchgrowth.spec import BatchGrowthJob, JobSpec
from batchgrowth_trainer.building import build_replica, build_workload
from batchgrowth_trainer.exchange.all_reduce import add_up
from batchgrowth_trainer.exchange.strategy import prepare_exchange
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.replica.data import read
from batchgrowth_trainer.replica.evaluation import computed
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import draw_seed, seed_generators
from batchgrowth_trainer.workload import Workload, predict
from torch import Tensor, nn

MOMENTUM = "optimizer={type: SGD, sgd: {momentum: '0.9'}}"
DECAY = "optimizer={type: SGD, sgd: {momentum: '0.9', weightDecay: '0.1'}}"
ADAM = "optimizer={type: Adam}"
ADAM_W = "optimizer={type: AdamW, adamW: {weightDecay: '0.1'}}"
ADAMAX = "optimizer={type: Torch, torch: {optimizer: 'torch.optim:Adamax', arguments: {weight_decay: '0.1'}}}"
SPARSE = "optimizer={type: Torch, torch: {optimizer: 'torch.optim:SparseAdam'}}"
OF_DENSE = "optimizer={type: Torch, torch: {optimizer: 'torch.optim:Adam'}}"
SINGLE = "batch={initial: 3, maximum: 3, shard: 1, growth: {type: Constant}}"
RATE = 0.05
WORKERS = 3

Parameters = Any
Optimizer = Callable[[Parameters], torch.optim.Optimizer]


def momentum(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def decay(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9, weight_decay=0.1)


def adam_w(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)


def adamax(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.Adamax(parameters, lr=RATE, weight_decay=0.1)


def adam(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=RATE)


@dataclass(frozen=True)
class Case:
    """A workload of zoo.py, and how it is trained."""

    workload: str
    overrides: tuple[str, ...] = (MOMENTUM,)
    optimizer: Optimizer = momentum
    name: str = ""


EQUAL = [
    *map(Case, (
        "perceptron", "label_smoothing", "class_weights", "focal_loss", "multi_label", "quantile_regression",
        "multi_task", "deep_supervision", "sequence_loss", "two_losses", "gradient_penalty", "adversarial_examples",
        "triplet", "contrastive", "mixup", "cutmix", "distillation", "distillation_from_outside", "mean_teacher",
        "frozen_backbone", "mode_changed_in_forward", "unfrozen_later", "tied_embeddings", "parts_of_one_matrix",
        "spectral_norm", "spectral_norm_by_hooks", "weight_norm", "orthogonal", "positive_weights", "pruned",
        "low_rank", "masked_by_a_hook", "dropouts", "stochastic_depth", "norms", "batch_norm", "augmented",
        "variational", "autoencoder", "codebook", "embedding_bag", "packed_in_forward", "masked_transformer",
        "next_token", "several_inputs", "straight_through", "checkpointed", "complex_numbers", "experts",
        "sparse_embedding", "scripted",
        "uncertainty", "uncertainty_by_a_method", "learned_margin", "running_loss", "loss_of_the_models_own",  # T04
        "tied_by_data", "tied_by_transposed_data", "tied_in_part", "tied_to_a_frozen_one", "views",  # T05
        "frozen_batch_norm", "frozen_batch_norm_in_eval", "loss_with_a_mode",  # T07
        "double_by_default", "bfloat16_by_default",  # T12
        "mapping_from_collate", "mapping_from_the_data_set", "packed_sequences",  # T13
    )),
    Case("batch_norm_of_one_image", (MOMENTUM, "epochs=1", SINGLE)),  # T15
    Case("one_fold", (MOMENTUM, "workload.arguments.fold=2", "workload.examples=23")),
    Case("uncertainty", (ADAM,), adam, "uncertainty by Adam"),
    Case("low_rank", (DECAY,), decay, "low_rank that decays"),
    Case("unused_parameter", (DECAY,), decay),  # T14
    Case("unused_parameter", (ADAM_W,), adam_w, "unused_parameter and Adam"),
    Case("unused_parameter", (ADAMAX,), adamax, "unused_parameter and a class of torch"),
    Case("experts", (ADAM_W,), adam_w, "experts by Adam"),
    Case("distillation_from_a_loss", (DECAY,), decay),
]  # fmt: skip


def job_of(small_job: Any, case: Case) -> BatchGrowthJob:
    job: BatchGrowthJob = small_job(
        f"workload={{entrypoint: 'zoo:{case.workload}', examples: {zoo.EXAMPLES}}}", "workload.device=CPU", "epochs=2",
        "batch={initial: 12, maximum: 12, shard: 4, growth: {type: Constant}}",
        f"learningRate={{initial: '{RATE}', rule: Constant}}", *case.overrides,
    )  # fmt: skip
    return job


@pytest.fixture(autouse=True)
def _torchs_defaults() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@dataclass
class Plain:
    """Training in plain torch."""

    spec: JobSpec
    workload: Workload
    optimizer: torch.optim.Optimizer

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and the loss if it is a module."""
        module = self.workload.loss_module
        return [self.workload.model] if module is None else [self.workload.model, module]

    def buffers(self) -> dict[str, Tensor]:
        """All buffers, except those that are views of a parameter."""
        named: dict[str, Tensor] = {}
        memory = {p.untyped_storage().data_ptr() for module in self.modules for p in module.parameters()}
        for number, module in enumerate(self.modules):
            for name, buffer in module.named_buffers():
                if buffer.untyped_storage().data_ptr() not in memory:
                    named[f"{number}.{name}"] = buffer
        return named

    def epoch(self, replica: Replica, steps: list[Step]) -> None:
        for module in self.modules:
            module.train()
        for step in steps:
            self.update(replica, step)
        for module in self.modules:
            module.eval()

    def update(self, replica: Replica, step: Step) -> None:
        """Take a step with the mean gradient of the shards; `replica` only says which examples they have."""
        self.optimizer.zero_grad()
        before = {name: buffer.clone() for name, buffer in self.buffers().items()}
        changes = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in before.items()}
        bounds = shard_bounds(step.examples, step.shards)
        for shard in range(step.shards):
            size = bounds[shard + 1] - bounds[shard]
            with torch.no_grad():
                for name, buffer in self.buffers().items():
                    buffer.copy_(before[name])
            inputs, target = read(self.workload, replica.requests.of(replica.plan, step, shard))
            seed_generators(draw_seed(self.spec.seed, "shard", step.position.update, shard))
            if self.workload.augment is not None:
                inputs = self.workload.augment(inputs)
            if self.workload.step is not None:
                losses = self.workload.step(self.workload.model, inputs, target)
            else:
                losses = self.workload.loss(predict(self.workload.model, inputs), target)
            (losses.sum() / step.examples).backward()  # type: ignore[no-untyped-call]
            for name, buffer in self.buffers().items():
                changes[name] += (buffer.double() - before[name].double()) * size / step.examples
        self.optimizer.step()
        with torch.no_grad():
            for name, buffer in self.buffers().items():
                moved = before[name].double() + changes[name]
                buffer.copy_(moved if buffer.is_floating_point() else moved.round())

    def state(self) -> dict[str, Tensor]:
        states = [module.state_dict() for module in self.modules]
        if len(states) > 1 and any(p.requires_grad for p in self.modules[1].parameters()):
            states[0] = states[0] | {f"loss.{name}": value for name, value in states[1].items()}
        return states[0]


def trainable(modules: list[nn.Module]) -> list[nn.Parameter]:
    return list(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))


def made(spec: JobSpec) -> Replica:
    """Another worker's replica."""
    replica = Replica(spec, build_workload(spec), torch.device("cpu"))
    prepare_exchange(replica)
    return replica


def train_together(spec: JobSpec) -> Replica:
    """Train with three members; the last one joins in the middle, and gets the state of the first."""
    members = [made(spec) for _ in range(WORKERS - 1)]
    late = 2
    while not members[0].plan.is_done(members[0].position):
        first = members[0]
        step = first.plan.step_at(first.position)
        if step.position.update == late:
            members.append(made(spec))
            members[-1].restore(first.snapshot())
        layout = lay_out(step.shards, len(members))
        rows = [node.row.clone() for member, run in zip(members, layout.runs, strict=True)
                for node in member.partials(step, run)]  # fmt: skip
        total = add_up(rows, layout)
        for member in members:
            member.commit(step, total.clone())
        if first.position.offset == 0:
            for member in members[:1]:  # one of them evaluates
                computed(member, "", (0, 1))
    assert len(members) == WORKERS
    assert {weights_sha256(member.state_dict()) for member in members} == {weights_sha256(members[0].state_dict())}
    return members[0]


@pytest.mark.fault("T04", "T05", "T07", "T12", "T13", "T14", "T15")
@pytest.mark.parametrize("case", EQUAL, ids=lambda case: case.name or case.workload)
def test_a_workload_equals_plain_torch_for_one_worker_and_for_three(small_job: Any, case: Case) -> None:
    spec = job_of(small_job, case).spec
    replica = build_replica(spec)
    workload = build_workload(spec)
    plain = Plain(spec, workload, torch.optim.SGD([torch.zeros(())], lr=RATE))
    plain.optimizer = case.optimizer(trainable(plain.modules))
    steps: list[Step] = []
    while not replica.plan.is_done(replica.position):
        step = replica.plan.step_at(replica.position)
        [whole] = replica.partials(step, (0, step.shards))
        replica.commit(step, whole.row)
        replica.rows.release((whole,))
        steps.append(step)
        if replica.position.offset == 0:
            computed(replica, "", (0, 1))
            plain.epoch(replica, steps)
            steps.clear()
    actual = replica.state_dict()
    expected = plain.state()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        torch.testing.assert_close(actual[name].double(), value.double(), rtol=1e-6, atol=1e-6, msg=name)
    assert weights_sha256(actual) == weights_sha256(train_together(spec).state_dict())


REFUSED = [
    ("complex_parameter", (), r"model\.phase is torch\.complex64; .* torch\.view_as_complex; see .*zoo\.py:\d+"),
    ("expanded_parameter", (), r"elements of the parameter bias share memory with each other.*zoo\.py:\d+"),
    ("buffer_across_parameters", (), r"model\.whole and model\.bias share some of their memory.*zoo\.py:\d+"),
    ("layers_in_a_list", (), r"model\.some is a list of modules, which torch does not find.*zoo\.py:\d+"),
    ("lazy", (), r"model\.0\.weight has no shape yet.*zoo\.py:\d+"),
    ("clipped_by_a_hook", (), r"a hook of the parameter 0\.weight changes the gradient of a sum.*zoo\.py:\d+"),
    ("zeroed_gradients", (), r"the gradient of the parameter 0\.weight is removed.*leave out zero_grad.*zoo\.py:\d+"),
    ("replaced_gradients", (), r"the gradient of the parameter 0\.weight is .*replaced.*create_graph.*zoo\.py:\d+"),
    (
        "normalized_by_data",
        (),
        r"the parameter model\.directions\.weight is changed.*normalized.*zoo\.py:\d+, in forward",
    ),
    ("clamped_by_data", (), r"the parameter model\.0\.weight is changed.*clamped.*zoo\.py:\d+"),
    ("momentum_encoder", (), r"the parameter model\.key\.0\.weight is changed.*register_buffer.*zoo\.py:\d+"),
    ("momentum_encoder_in_place", (), r"the parameter model\.key\.0\.weight is changed.*buffer.*zoo\.py:\d+"),
    ("loss_that_moves_its_weights", (), r"the parameter loss\.directions\.weight is changed.*zoo\.py:\d+"),
    ("loss_around_a_parameter", (), r"the losses depend on weight, of shape \(\), which needs.*zoo\.py:\d+"),
    ("loss_around_a_tensor", (), r"the losses depend on _scale, of shape \(\), which needs.*zoo\.py:\d+"),
    ("augmented_by_a_module", (), r"the losses depend on a tensor, of shape \(8, 8\).*zoo\.py:\d+"),
    ("only_sparse", (SPARSE,), r"SparseAdam takes sparse gradients only.*such as torch\.optim:Adam.*zoo\.py:\d+"),
    ("tied_by_data", (ADAM,), r"model\.first\.weight and model\.second\.weight are two parameters.*zoo\.py:\d+"),
    ("tied_by_data", (DECAY,), r"model\.first\.weight and model\.second\.weight are two parameters.*zoo\.py:\d+"),
]


@pytest.mark.parametrize(("workload", "overrides", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_workload_is_refused_by_a_sentence_that_names_its_line(
    small_job: Any, workload: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        build_replica(job_of(small_job, Case(workload, overrides or (MOMENTUM,))).spec)


@pytest.mark.parametrize("case", [
    Case("only_sparse", (OF_DENSE,)), Case("loss_of_the_models_own"), Case("masked_by_a_hook"),
], ids=lambda case: case.workload)  # fmt: skip
def test_what_a_refusal_names_as_a_remedy_is_accepted(small_job: Any, case: Case) -> None:
    build_replica(job_of(small_job, case).spec)
