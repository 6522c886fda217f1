"""Small workloads as people write them: a function for each recipe of a tutorial, and for each mistake.

test_zoo.py trains each beside plain torch. They are small on purpose: 34 examples, so that the last shards are shorter.
"""

import copy
import functools
import warnings
from collections import UserDict
from typing import Any

import torch
from batchgrowth_trainer.workload import Workload
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, rnn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, Subset, TensorDataset

EXAMPLES, FEATURES, CLASSES, LONGEST, TOKENS = 34, 8, 3, 5, 11

_draw = torch.Generator().manual_seed(1)
X = torch.randn(EXAMPLES, FEATURES, generator=_draw)
Y = (X @ torch.randn(FEATURES, CLASSES, generator=_draw)).argmax(dim=1)
IMAGES = torch.randn(EXAMPLES, 1, 4, 4, generator=_draw)
TEXTS = torch.randint(1, TOKENS, (EXAMPLES, LONGEST), generator=_draw)
LENGTHS = torch.randint(1, LONGEST + 1, (EXAMPLES,), generator=_draw)
TEXTS[torch.arange(LONGEST) >= LENGTHS.unsqueeze(1)] = 0  # padding

cross_entropy = nn.CrossEntropyLoss(reduction="none")


def of(model: nn.Module, loss: Any = cross_entropy, train: Any = None, **more: Any) -> Workload:
    """A workload on the rows and their classes, unless it has other data."""
    data = TensorDataset(X, Y) if train is None else train
    return Workload(model=model, loss=loss, train=data, test=Subset(data, range(6)), **more)


def images(model: nn.Module, **more: Any) -> Workload:
    return of(model, train=TensorDataset(IMAGES, Y), **more)


def mlp(outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, outputs))


class Applies(nn.Module):
    """A module from layers by name and a forward function, to write models in a few lines."""

    def __init__(self, forward: Any, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._function = forward

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._function(self, *inputs, **named)


# --- The usual losses and heads ---


def perceptron() -> Workload:
    return of(mlp())


def label_smoothing() -> Workload:
    return of(mlp(), nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1))


def class_weights() -> Workload:
    return of(mlp(), nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 2.0]), reduction="none"))


def focal_loss() -> Workload:
    def focal(output: Tensor, target: Tensor) -> Tensor:
        plain = functional.cross_entropy(output, target, reduction="none")
        return (1 - (-plain).exp()) ** 2 * plain

    return of(mlp(), focal)


def multi_label() -> Workload:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(output, target, reduction="none").mean(dim=1)

    return of(mlp(), loss, TensorDataset(X, functional.one_hot(Y, CLASSES).float()))


def quantile_regression() -> Workload:
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def pinball(output: Tensor, target: Tensor) -> Tensor:
        error = target.unsqueeze(1) - output
        return torch.maximum(quantiles * error, (quantiles - 1) * error).sum(dim=1)

    return of(mlp(), pinball, TensorDataset(X, X.sum(dim=1)))


def multi_task() -> Workload:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x).tanh()
        return self.kind(hidden), self.size(hidden)

    def loss(output: tuple[Tensor, Tensor], target: dict[str, Tensor]) -> Tensor:
        return cross_entropy(output[0], target["kind"]) + (output[1].squeeze(1) - target["size"]) ** 2

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return EXAMPLES

        def __getitem__(self, index: int) -> Any:
            return X[index], {"kind": Y[index], "size": X[index].norm()}

    return of(Applies(forward, trunk=nn.Linear(FEATURES, 6), kind=nn.Linear(6, 3), size=nn.Linear(6, 1)), loss, Rows())


def deep_supervision() -> Workload:
    def forward(self: Any, x: Tensor) -> list[Tensor]:
        first = self.first(x).relu()
        return [self.early(first), self.late(self.second(first).relu())]

    def loss(outputs: list[Tensor], target: Tensor) -> Tensor:
        return sum((cross_entropy(each, target) for each in outputs), torch.zeros(()))

    layers = {"first": nn.Linear(FEATURES, 6), "second": nn.Linear(6, 6)}
    return of(Applies(forward, **layers, early=nn.Linear(6, CLASSES), late=nn.Linear(6, CLASSES)), loss)


def sequence_loss() -> Workload:
    """Connectionist temporal classification."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        steps = output.log_softmax(dim=2).transpose(0, 1)
        whole = torch.full((output.shape[0],), output.shape[1])
        return functional.ctc_loss(steps, target.unsqueeze(1) + 1, whole, torch.ones_like(whole), reduction="none")

    return of(Applies(lambda self, x: self.net(x.view(-1, 4, 2)), net=nn.Linear(2, CLASSES + 1)), loss)


# --- Losses with a state ---


class Uncertainty(nn.Module):
    """Weighs two losses by learned variances: Kendall, Gal and Cipolla, 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        first = functional.cross_entropy(output, target, reduction="none")
        weights = (-self.log_variance).exp()
        return first * weights[0] + (output**2).mean(dim=1) * weights[1] + self.log_variance.sum()


def uncertainty() -> Workload:
    return of(mlp(), Uncertainty())


def uncertainty_by_a_method() -> Workload:
    return of(mlp(), functools.partial(Uncertainty().forward))


class Margin(nn.Module):
    """Cosines with learned directions of classes, less a margin, as in ArcFace."""

    def __init__(self) -> None:
        super().__init__()
        self.directions = nn.Linear(4, CLASSES, bias=False)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("margin", torch.tensor(0.1))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        weights = functional.normalize(self.directions.weight)
        cosines = functional.normalize(self.drop(output)) @ weights.t()
        return cross_entropy(4 * (cosines - self.margin * functional.one_hot(target, CLASSES)), target)


def learned_margin() -> Workload:
    return of(mlp(4), Margin())


class Teaching(nn.Module):
    """A loss that has the teacher, which is not frozen, but gets no gradient either."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.sharpness = mlp(), nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            told = self.teacher(target).softmax(dim=1)
        return -(told * (self.sharpness * output).log_softmax(dim=1)).sum(dim=1)


def distillation_from_a_loss() -> Workload:
    return of(mlp(), Teaching(), TensorDataset(X, X))


class Running(nn.Module):
    """Divides by a running mean of itself, which is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = functional.cross_entropy(output, target, reduction="none")
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(loss.mean(), 0.1)
        return loss / self.mean


def running_loss() -> Workload:
    return of(mlp(), Running())


def loss_of_the_models_own() -> Workload:
    model = mlp()
    model.add_module("criterion", Uncertainty())
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    return of(model, model.criterion)  # type: ignore[arg-type]


# --- Several losses, several calls of the model ---


def two_losses() -> Workload:
    """A generator and a discriminator, whose losses do not reach each other."""

    def step(model: Any, inputs: Tensor, target: Tensor) -> Tensor:
        real = inputs[:, :2]
        made = model.generator(torch.randn(len(inputs), 2))
        ones, zeros = torch.ones(len(inputs), 1), torch.zeros(len(inputs), 1)
        judge = functools.partial(functional.binary_cross_entropy_with_logits, reduction="none")
        of_discriminator = judge(model.discriminator(real), ones) + judge(model.discriminator(made.detach()), zeros)
        for parameter in model.discriminator.parameters():
            parameter.requires_grad_(False)
        of_generator = judge(model.discriminator(made), ones)
        for parameter in model.discriminator.parameters():
            parameter.requires_grad_(True)
        return (of_discriminator + of_generator).squeeze(1)

    layers = {"generator": nn.Linear(2, 2), "discriminator": nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))}
    return of(Applies(lambda self, x: self.discriminator(x[:, :2]), **layers), lambda o, t: o.squeeze(1), step=step)


def gradient_penalty() -> Workload:
    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        inputs = inputs.requires_grad_()
        output = model(inputs)
        [slope] = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        return cross_entropy(output, target) + 0.1 * (slope.norm(dim=1) - 1) ** 2

    return of(mlp(), step=step)


def adversarial_examples() -> Workload:
    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        inputs = inputs.detach().requires_grad_()
        [slope] = torch.autograd.grad(cross_entropy(model(inputs), target).sum(), inputs)
        return cross_entropy(model(inputs.detach() + 0.05 * slope.sign()), target)

    return of(mlp(), step=step)


def triplet() -> Workload:
    def step(model: nn.Module, inputs: Any, target: Tensor) -> Tensor:
        anchor, near, far = (model(part) for part in inputs)
        return functional.triplet_margin_loss(anchor, near, far, reduction="none")

    data = TensorDataset(X, X + 0.1, X.flip(0), Y)
    model = Applies(lambda self, x, *_: self.net(x), net=mlp(4))
    return of(model, lambda o, t: o.square().sum(dim=1), data, step=step)


def contrastive() -> Workload:
    """Two noisy views of each example, which stand against the others of its shard."""

    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        first, second = (functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs))) for _ in range(2))
        return cross_entropy(first @ second.t() / 0.5, torch.arange(len(inputs)))

    return of(mlp(4), lambda o, t: o.square().sum(dim=1), step=step)


def mixup() -> Workload:
    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        share, other = torch.rand(()), torch.randperm(len(inputs))
        output = model(share * inputs + (1 - share) * inputs[other])
        return share * cross_entropy(output, target) + (1 - share) * cross_entropy(output, target[other])

    return of(mlp(), step=step)


def cutmix() -> Workload:
    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        other, left = torch.randperm(len(inputs)), int(torch.randint(1, 4, ()))
        mixed = torch.cat([inputs[..., :left], inputs[other][..., left:]], dim=3)
        output, share = model(mixed), left / 4
        return share * cross_entropy(output, target) + (1 - share) * cross_entropy(output, target[other])

    return images(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)), step=step)


def distillation() -> Workload:
    """The teacher is a frozen part of the model."""
    teacher = mlp().requires_grad_(False)

    def step(model: Any, inputs: Tensor, target: Tensor) -> Tensor:
        told = model.teacher(inputs).softmax(dim=1)
        return -(told * model.student(inputs).log_softmax(dim=1)).sum(dim=1)

    return of(Applies(lambda self, x: self.student(x), student=mlp(), teacher=teacher), step=step)


def distillation_from_outside() -> Workload:
    """The teacher is nowhere in the model, and is not frozen, but has no gradient either."""
    teacher = mlp()

    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            told = teacher(inputs).softmax(dim=1)
        return -(told * model(inputs).log_softmax(dim=1)).sum(dim=1)

    return of(mlp(), step=step)


class MeanTeacher(nn.Module):
    """An average of the student's weights in buffers, which the student is to agree with."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("teacher", self.student.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.lerp_(self.student.weight, 0.1)
        return self.student(x)


def mean_teacher() -> Workload:
    def step(model: Any, inputs: Tensor, target: Tensor) -> Tensor:
        output = model(inputs)
        return cross_entropy(output, target) + (output - inputs @ model.teacher.t()).square().mean(dim=1)

    return of(MeanTeacher(), step=step)


def zeroed_gradients() -> Workload:
    """A training step as it stands in a loop of plain torch."""

    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        model.zero_grad()
        return cross_entropy(model(inputs), target)

    return of(mlp(), step=step)


def replaced_gradients() -> Workload:
    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        losses = cross_entropy(model(inputs), target) / 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it may leak
            losses.sum().backward(create_graph=True)  # type: ignore[no-untyped-call]
        return losses

    return of(mlp(), step=step)


class Normalizing(nn.Module):
    """Cosines with directions that each call normalizes, as recipes of ArcFace have it."""

    def __init__(self) -> None:
        super().__init__()
        self.directions = nn.Linear(FEATURES, CLASSES, bias=False)
        self._normalize()

    def _normalize(self) -> None:
        self.directions.weight.data = functional.normalize(self.directions.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        self._normalize()
        return self.directions(x)


def normalized_by_data() -> Workload:
    return of(Normalizing())


def clamped_by_data() -> Workload:
    """As a critic of a Wasserstein GAN; nothing is clamped at first."""

    def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        for parameter in model.parameters():
            parameter.data = parameter.data.clamp(-5, 5)
        return cross_entropy(model(inputs), target)

    return of(mlp(), step=step)


class Momentum(nn.Module):
    """A frozen encoder that follows a trained one, as in MoCo."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.query, self._in_place = mlp(), in_place
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            if self._in_place:
                slow.data.mul_(0.9).add_(fast.data, alpha=0.1)
            else:
                slow.data = slow.data * 0.9 + fast.data * 0.1
        return self.query(x) + self.key(x)


def momentum_encoder() -> Workload:
    return of(Momentum(in_place=False))


def momentum_encoder_in_place() -> Workload:
    return of(Momentum(in_place=True))


class MovingMargin(Margin):
    """A loss that takes steps of its own."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.directions.weight.data = self.directions.weight.data * 1.0
        return super().forward(output, target)


def loss_that_moves_its_weights() -> Workload:
    return of(mlp(4), MovingMargin())


# --- Modes, frozen parts ---


def frozen_backbone() -> Workload:
    backbone = nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU()).requires_grad_(False)
    return of(nn.Sequential(backbone, nn.Linear(6, CLASSES)))


class FrozenNorm(nn.Module):
    """Batch norm that keeps its statistics, by the usual override of train()."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
        self.norm.running_mean.fill_(0.3)  # type: ignore[union-attr]
        self.norm.requires_grad_(False)

    def train(self, mode: bool = True) -> "FrozenNorm":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())


def frozen_batch_norm() -> Workload:
    return of(FrozenNorm())


def frozen_batch_norm_in_eval() -> Workload:
    return of(FrozenNorm().eval())


class FrozenDropout(Uncertainty):
    """A loss that never drops, by an override of train()."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def train(self, mode: bool = True) -> "FrozenDropout":
        super().train(mode)
        self.drop.eval()
        return self

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(self.drop(output), target)


def loss_with_a_mode() -> Workload:
    return of(mlp(), FrozenDropout())


def mode_changed_in_forward() -> Workload:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.norm.eval()
        return self.last(self.norm(x))

    return of(Applies(forward, norm=nn.BatchNorm1d(FEATURES), last=nn.Linear(FEATURES, CLASSES)))


def unfrozen_later() -> Workload:
    """Made in eval mode, as pretrained models are."""
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, CLASSES))
    return of(model.eval())


# --- Storage ---


def tied_embeddings() -> Workload:
    def forward(self: Any, text: Tensor) -> Tensor:
        return self.decode(self.mix(self.embed(text)).tanh().mean(dim=1))

    model = Applies(forward, embed=nn.Embedding(TOKENS, 4), mix=nn.Linear(4, 4), decode=nn.Linear(4, TOKENS))
    model.decode.weight = model.embed.weight  # type: ignore[union-attr, assignment]
    return of(model, train=TensorDataset(TEXTS, TEXTS[:, 0]))


def _twice(first: nn.Linear, second: nn.Linear) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.out(self.second(self.first(x).tanh()).tanh())

    return Applies(forward, first=first, second=second, out=nn.Linear(second.out_features, CLASSES))


def tied_by_data() -> Workload:
    first, second = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(2))
    second.weight.data = first.weight.data
    return of(_twice(first, second))


def tied_by_transposed_data() -> Workload:
    first, second = nn.Linear(FEATURES, 5), nn.Linear(5, FEATURES)
    second.weight.data = first.weight.data.t()
    return of(_twice(first, second))


def tied_in_part() -> Workload:
    first, second = nn.Linear(FEATURES, 6), nn.Linear(6, 6)
    whole = first.weight.data.view(-1)
    second.weight = nn.Parameter(whole[12:].view(6, 6))
    return of(_twice(first, second))


def tied_to_a_frozen_one() -> Workload:
    first, second = (nn.Linear(FEATURES, FEATURES) for _ in range(2))
    second.weight = nn.Parameter(first.weight.data, requires_grad=False)
    return of(_twice(first, second))


class Views(nn.Module):
    """A plain attribute and a buffer that are views of a parameter, and a buffer within a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.rows = self.layer.weight.data[:2]
        self.register_buffer("bias", self.layer.bias.data)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("later", self.seen[2:])
        self.same = self.seen

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.later += 0.1  # type: ignore[operator]
            self.same += 0.01
        return self.layer(x) + self.bias + self.rows.sum() + self.seen.sum()


def views() -> Workload:
    return of(Views())


def parts_of_one_matrix() -> Workload:
    """Side by side in one memory, and tied in nothing."""
    whole = torch.randn(FEATURES, 2 * CLASSES) * 0.1
    first, second = (nn.Linear(FEATURES, CLASSES) for _ in range(2))
    left, right = whole.chunk(2, dim=1)
    first.weight, second.weight = nn.Parameter(left.t()), nn.Parameter(right.t())
    return of(Applies(lambda self, x: self.first(x) * self.second(x), first=first, second=second))


def expanded_parameter() -> Workload:
    model = nn.Linear(FEATURES, CLASSES)
    model.bias = nn.Parameter(torch.zeros(1).expand(CLASSES))
    return of(model)


def buffer_across_parameters() -> Workload:
    """A buffer that lies only partly in the memory of a parameter."""
    model, whole = nn.Linear(FEATURES, CLASSES), torch.zeros(6)
    model.bias = nn.Parameter(whole[:CLASSES])
    model.register_buffer("whole", whole)
    return of(model)


# --- Reparametrized weights ---


def spectral_norm() -> Workload:
    return of(nn.Sequential(parametrizations.spectral_norm(nn.Linear(FEATURES, 6)), nn.ReLU(), nn.Linear(6, CLASSES)))


def spectral_norm_by_hooks() -> Workload:
    layer = nn.utils.spectral_norm(nn.Linear(FEATURES, 6))  # type: ignore[no-untyped-call]
    return of(nn.Sequential(layer, nn.ReLU(), nn.Linear(6, CLASSES)))


def weight_norm() -> Workload:
    return of(nn.Sequential(parametrizations.weight_norm(nn.Linear(FEATURES, 6)), nn.ReLU(), nn.Linear(6, CLASSES)))


def weight_norm_by_hooks() -> Workload:
    return of(nn.Sequential(nn.utils.weight_norm(nn.Linear(FEATURES, 6)), nn.Tanh(), nn.Linear(6, CLASSES)))


def orthogonal() -> Workload:
    return of(nn.Sequential(parametrizations.orthogonal(nn.Linear(FEATURES, 6)), nn.Linear(6, CLASSES)))


def positive_weights() -> Workload:
    model = nn.Linear(FEATURES, CLASSES)
    parametrize.register_parametrization(model, "weight", nn.Softplus())
    return of(model)


def pruned() -> Workload:
    model = mlp()
    prune.random_unstructured(model[0], "weight", amount=0.3)  # type: ignore[no-untyped-call]
    return of(model)


class LowRank(nn.Module):
    """LoRA: a frozen layer, and a product of two small matrices, one of which begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, 6).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(FEATURES, 2) * 0.1), nn.Parameter(torch.zeros(2, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down @ self.up


def low_rank() -> Workload:
    return of(nn.Sequential(LowRank(), nn.Tanh(), nn.Linear(6, CLASSES)))


def clipped_by_a_hook() -> Workload:
    model = mlp()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    return of(model)


def masked_by_a_hook() -> Workload:
    """The first row of the weights stays as it is."""
    model, mask = mlp(), torch.ones(6, 1)
    mask[0] = 0.0
    model[0].weight.register_hook(lambda gradient: gradient * mask)
    return of(model)


# --- Layers with randomness or statistics ---


def dropouts() -> Workload:
    layers = [nn.Conv1d(1, 4, 3), nn.Dropout1d(0.3), nn.Flatten(), nn.AlphaDropout(0.1), nn.Dropout(0.2)]
    return of(nn.Sequential(nn.Unflatten(1, (1, FEATURES)), *layers, nn.RReLU(), nn.Linear(24, CLASSES)))


def stochastic_depth() -> Workload:
    def forward(self: Any, x: Tensor) -> Tensor:
        if self.training:
            x = x + self.first(x).tanh() * (torch.rand(len(x), 1) < 0.7)
        else:
            x = x + 0.7 * self.first(x).tanh()
        return self.last(x)

    return of(Applies(forward, first=nn.Linear(FEATURES, FEATURES), last=nn.Linear(FEATURES, CLASSES)))


def norms() -> Workload:
    layers = [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU()]
    return images(nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, CLASSES)))


def batch_norm() -> Workload:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(16),
                          nn.Linear(16, CLASSES))  # fmt: skip
    return images(model)


def batch_norm_of_one_image() -> Workload:
    return images(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)))


def augmented() -> Workload:
    def noise(inputs: Tensor) -> Tensor:
        return torch.where(torch.rand(len(inputs), 1, 1, 1) < 0.5, inputs.flip(3), inputs) + torch.randn(()) * 0.1

    return images(nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)), augment=noise)


def variational() -> Workload:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decode(drawn), mean, log_variance

    def loss(output: Any, target: Tensor) -> Tensor:
        made, mean, log_variance = output
        return (made - target).square().sum(1) + 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(1)

    return of(Applies(forward, encode=mlp(4), decode=nn.Linear(2, FEATURES)), loss, TensorDataset(X, X))


def autoencoder() -> Workload:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.l1_loss(output, target, reduction="none").mean(dim=(1, 2, 3))

    model = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2))
    return of(model, loss, TensorDataset(IMAGES, IMAGES))


class Codebook(nn.Module):
    """A codebook that moves as a running mean of what is coded, as in VQ-VAE, in buffers that forward replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(FEATURES, 2), nn.Linear(2, CLASSES)
        self.register_buffer("codes", torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        found = self.encode(x)
        nearest = torch.cdist(found, self.codes).argmin(dim=1)
        if self.training:
            hits = functional.one_hot(nearest, 4).float()
            means = hits.t() @ found.detach() / hits.sum(0).clamp(min=1).unsqueeze(1)
            self.codes = torch.where(hits.any(0).unsqueeze(1), 0.9 * self.codes + 0.1 * means, self.codes)
        return self.decode(found + (self.codes[nearest] - found).detach())


def codebook() -> Workload:
    return of(Codebook())


# --- Sequences and other inputs ---


def embedding_bag() -> Workload:
    return of(nn.Sequential(nn.EmbeddingBag(TOKENS, 4, mode="mean", padding_idx=0), nn.Linear(4, CLASSES)),
              train=TensorDataset(TEXTS, Y))  # fmt: skip


def _last_of_lstm(self: Any, packed: Any) -> Tensor:
    return self.out(self.lstm(packed)[1][0][-1])


def packed_sequences() -> Workload:
    """`collate` packs what is of many lengths."""

    class Ragged(Dataset[Any]):
        def __len__(self) -> int:
            return EXAMPLES

        def __getitem__(self, index: int) -> Any:
            return X[index, : LENGTHS[index], None], Y[index]

    def packed(items: list[Any]) -> Any:
        sequences, targets = zip(*items, strict=True)
        return rnn.pack_sequence(sequences, enforce_sorted=False), torch.stack(targets)

    return of(Applies(_last_of_lstm, lstm=nn.LSTM(1, 4), out=nn.Linear(4, CLASSES)), train=Ragged(), collate=packed)


def packed_in_forward() -> Workload:
    def forward(self: Any, text: Tensor, lengths: Tensor) -> Tensor:
        embedded = self.embed(text)
        return _last_of_lstm(
            self, rnn.pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        )

    layers = {"embed": nn.Embedding(TOKENS, 3, padding_idx=0), "lstm": nn.LSTM(3, 4, num_layers=2, dropout=0.1)}
    return of(Applies(forward, **layers, out=nn.Linear(4, CLASSES)), train=TensorDataset(TEXTS, LENGTHS, Y))


def masked_transformer() -> Workload:
    def forward(self: Any, text: Tensor) -> Tensor:
        encoded = self.layer(self.embed(text) + self.place.weight, src_key_padding_mask=text == 0)
        return self.out(encoded[:, 0])

    model = Applies(
        forward, embed=nn.Embedding(TOKENS, 8), place=nn.Embedding(LONGEST, 8),
        layer=nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True), out=nn.Linear(8, CLASSES),
    )  # fmt: skip
    return of(model, train=TensorDataset(TEXTS, Y))


def next_token() -> Workload:
    def forward(self: Any, text: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(text))[0])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = functional.cross_entropy(output.transpose(1, 2), target, reduction="none", ignore_index=0)
        return each.sum(dim=1) / LONGEST

    layers = {"embed": nn.Embedding(TOKENS, 4), "gru": nn.GRU(4, 4, batch_first=True)}
    data = TensorDataset(TEXTS, TEXTS.roll(-1, dims=1))
    return of(Applies(forward, **layers, out=nn.Linear(4, TOKENS)), loss, data)


def several_inputs() -> Workload:
    def forward(self: Any, row: Tensor, image: Tensor) -> Tensor:
        return self.row(row) + self.image(image.flatten(1))

    model = Applies(forward, row=nn.Linear(FEATURES, CLASSES), image=nn.Linear(16, CLASSES))
    return of(model, train=TensorDataset(X, IMAGES, Y))


class Encoding(UserDict[str, Any]):
    """As BatchEncoding of the library transformers: a mapping, and no dict."""


def mapping_from_collate() -> Workload:
    def together(items: list[Any]) -> Any:
        rows, targets = (torch.stack(column) for column in zip(*items, strict=True))
        return Encoding(values=rows, scale=torch.ones(len(items), 1), labels=targets)

    return of(Applies(lambda self, values, scale: self.net(values * scale), net=mlp()), collate=together)


def mapping_from_the_data_set() -> Workload:
    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return EXAMPLES

        def __getitem__(self, index: int) -> Any:
            return Encoding(values=X[index], labels=Y[index])

    return of(Applies(lambda self, values: Encoding(logits=self.net(values)), net=mlp()),
              lambda output, target: cross_entropy(output["logits"], target), Rows())  # fmt: skip


def one_fold(fold: str = "1") -> Workload:
    """Cross-validation: every third example is for the test."""
    data, held = TensorDataset(X, Y), range(int(fold), EXAMPLES, 3)
    rest = [index for index in range(EXAMPLES) if index not in held]
    return Workload(model=mlp(), loss=cross_entropy, train=Subset(data, rest), test=Subset(data, held))


# --- Gradients ---


class Sign(torch.autograd.Function):
    """The sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Tensor:
        return gradient[0]


def straight_through() -> Workload:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(Sign.apply(self.first(x)))  # type: ignore[no-untyped-call]

    return of(Applies(forward, first=nn.Linear(FEATURES, 6), last=nn.Linear(6, CLASSES)))


def checkpointed() -> Workload:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=False))

    first = nn.Sequential(nn.Linear(FEATURES, 6), nn.Dropout(0.3), nn.Tanh())
    return of(Applies(forward, first=first, last=nn.Linear(6, CLASSES)))


def complex_numbers() -> Workload:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter, self.out = nn.Parameter(torch.randn(FEATURES // 2 + 1, 2)), nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.filter), n=FEATURES))

    return of(Waves())


def complex_parameter() -> Workload:
    model = mlp()
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))  # type: ignore[assignment]
    return of(model)


def unused_parameter() -> Workload:
    """One that nothing uses, and a branch that only some shards use."""

    def forward(self: Any, x: Tensor) -> Tensor:
        output: Tensor = self.net(x)
        return output + self.branch(x) if x[:, 0].mean() > 0.4 else output

    model = Applies(forward, net=mlp(), branch=nn.Linear(FEATURES, CLASSES))
    model.unused = nn.Parameter(torch.ones(4))  # type: ignore[assignment]
    return of(model)


def experts() -> Workload:
    """Each example goes to the one of four experts that the gate prefers."""

    def forward(self: Any, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(dim=1).max(dim=1)
        output = torch.zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                output[mine] = expert(x[mine])
        return output * weights.unsqueeze(1)

    layers = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(4))
    return of(Applies(forward, gate=nn.Linear(FEATURES, 4), experts=layers))


def sparse_embedding() -> Workload:
    def forward(self: Any, text: Tensor) -> Tensor:
        return self.out(self.embed(text).mean(dim=1))

    model = Applies(forward, embed=nn.Embedding(TOKENS, 4, sparse=True), out=nn.Linear(4, CLASSES))
    return of(model, train=TensorDataset(TEXTS, Y))


def only_sparse() -> Workload:
    model = Applies(lambda self, text: self.embed(text).mean(dim=1), embed=nn.Embedding(TOKENS, 3, sparse=True))
    return of(model, train=TensorDataset(TEXTS, Y))


def loss_around_a_parameter() -> Workload:
    """The parameter is in neither module."""
    weight = nn.Parameter(torch.ones(()))
    return of(mlp(), lambda output, target: cross_entropy(output * weight, target))


_scale = torch.ones((), requires_grad=True)


def loss_around_a_tensor() -> Workload:
    return of(mlp(), lambda output, target: cross_entropy(output * _scale, target))


def augmented_by_a_module() -> Workload:
    """What the augmentation should learn is in no model."""
    return of(mlp(), augment=nn.Linear(FEATURES, FEATURES))


def layers_in_a_list() -> Workload:
    model = Applies(lambda self, x: self.out(sum(layer(x) for layer in self.some)), out=nn.Linear(6, CLASSES))
    model.some = [nn.Linear(FEATURES, 6), nn.Linear(FEATURES, 6)]  # type: ignore[assignment]
    return of(model)


def lazy() -> Workload:
    return of(nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, CLASSES)))


# --- Of other makes ---


def scripted() -> Workload:
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, CLASSES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that it is deprecated
        return of(torch.jit.script(model))


def compiled() -> Workload:
    return of(torch.compile(mlp(), backend="eager"))  # type: ignore[arg-type]


def double_by_default() -> Workload:
    torch.set_default_dtype(torch.float64)
    return of(mlp().float())


def bfloat16_by_default() -> Workload:
    torch.set_default_dtype(torch.bfloat16)
    return of(mlp().float())
