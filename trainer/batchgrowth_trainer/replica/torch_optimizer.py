"""The optimizer type Torch: a subclass of torch.optim.Optimizer over the parameters of a model.

Between two steps its state is in flat vectors, so that it can move to another process or into a checkpoint.
"""

from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from batchgrowth.choices.optimizers import TorchBlock
from batchgrowth.errors import WorkloadError
from batchgrowth.spec import JobSpec
from torch import Tensor, nn

from batchgrowth_trainer.record.snapshot import UNSTEPPED
from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.python_state import LARGEST_BYTES, Change, PythonState
from batchgrowth_trainer.replica.seeds import draw_seed, seed_generators, untouched_randomness
from batchgrowth_trainer.user_code import find_function
from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at

FIELD = "optimizer.torch.optimizer"
_REMEDY = (
    "give the arguments that the class takes in optimizer.torch.arguments, and name one whose step() needs no closure"
)
_NUMBERS = "numbers"
_UNSTEPPED = UNSTEPPED.removeprefix("optimizer.")  # the vector of a 1 for each parameter that has had no gradient yet
_TRIED = 1e-3  # every element of the gradient that is tried, to see what the optimizer keeps
_NOT_KEPT = ("params", "lr")
_CPU = torch.device("cpu")
_PLAIN = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
"""Dtypes of tensors that are kept although the first steps did not change them."""

Made = torch.optim.Optimizer
Make = Callable[[list[nn.Parameter]], Made]
Store = dict[str, Any]


def maker(settings: TorchBlock) -> Callable[[JobSpec, FlatParameters], "TorchOptimizer"]:
    """Return a function that makes the optimizer for the parameters of a model."""

    def made(spec: JobSpec, parameters: FlatParameters) -> TorchOptimizer:
        return TorchOptimizer(settings, spec, parameters)

    return made


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value that the optimizer keeps, for a parameter or in a group, and its place in the vector `name`."""

    owner: int
    key: str
    name: str
    place: slice
    shape: tuple[int, ...]
    device: torch.device
    kind: type


class TorchOptimizer:
    """Wraps an optimizer of a given torch class in the interface of a FlatOptimizer."""

    def __init__(self, settings: TorchBlock, spec: JobSpec, parameters: FlatParameters) -> None:
        """Raise WorkloadError if there is no such optimizer, or its state cannot move to another process."""
        self._class = find_function(settings.optimizer, FIELD)
        if not (isinstance(self._class, type) and issubclass(self._class, torch.optim.Optimizer)):
            raise WorkloadError(f"{FIELD}: {settings.optimizer} is no subclass of torch.optim.Optimizer; name one")
        self._settings = settings
        self._seed = spec.seed
        self._rate = float(spec.learning_rate.initial)
        self._spans = parameters.spans
        vector = parameters.vector.data
        self._spared = [span.start >= parameters.last_from for span in self._spans]
        self._views = [span.of(vector) for span in self._spans]
        self._leaves = [nn.Parameter(view) for view in self._views]
        self.state: dict[str, Tensor] = {}
        with reported_as_workload_error(f"{FIELD}: {settings.optimizer}", _REMEDY):
            try:
                self._all_kept = list(self._tried())
            except RuntimeError as error:
                if "dense gradients" not in str(error):
                    raise
                raise WorkloadError(
                    f"{FIELD}: {settings.optimizer} takes sparse gradients only, and the trainer adds up the "
                    "gradients of shards in dense vectors, those of sparse embeddings too; name an optimizer of dense "
                    "gradients, such as torch.optim:Adam or torch.optim:Adagrad, with which a row that a batch lacks "
                    f"has the gradient 0{seen_at(None)}"
                ) from error
            self._optimizer = self._made(self._leaves)
        self._beginning: PythonState | None = None
        """The Python state of a user's own optimizer after its first step here by which all parameters have stepped."""

    @property
    def is_users(self) -> bool:
        """Return whether the class is the user's own or a package's, and not torch's."""
        return not self._class.__module__.startswith("torch.")

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int, unreached: Sequence[int] = ()) -> None:
        """Move the parameters by one update; `gradient` is the mean over the batch, shape (length,).

        The parameters with the indices `unreached` have no gradient. Raises WorkloadError if the optimizer raises an
        error, or keeps other values than after its first step.
        """
        # The optimizer may draw random numbers: seeded by the update, every process draws the same.
        seed_generators(draw_seed(self._seed, "optimizer", updates_done))
        # A mark between 0 and 1 is a mean over logical replicas, of which some have stepped the parameter.
        stepped = [mark < 1 and updates_done > 0 for mark in self.state[_UNSTEPPED].tolist()]
        for index, (leaf, span) in enumerate(zip(self._leaves, self._spans, strict=True)):
            leaf.grad = None if index in unreached else span.of(gradient)
        with reported_as_workload_error(f"{FIELD}: {self._settings.optimizer} at update {updates_done + 1}", _REMEDY):
            if not all(stepped):  # those without a step have the state that a new optimizer gives them
                self._optimizer = self._made(self._leaves)
                self._beginning = None
            if updates_done > 0:
                self._bring_back(stepped)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
            if self.is_users:
                self._take_over_new_data()
        stepped = [known or leaf.grad is not None for known, leaf in zip(stepped, self._leaves, strict=True)]
        self.state[_UNSTEPPED].copy_(1.0 - torch.tensor(stepped, dtype=torch.float64))
        self._keep(stepped)
        for leaf in self._leaves:
            leaf.grad = None
        if self._beginning is None and self.is_users and all(stepped):
            self._beginning = self._state_of_all()

    def _take_over_new_data(self) -> None:
        """Copy parameters whose memory the step has replaced (`p.data = …`) to their places in the flat vector."""
        for leaf, view in zip(self._leaves, self._views, strict=True):
            if leaf.data_ptr() != view.data_ptr():
                view.copy_(leaf.data)
                leaf.data = view

    def look_back(self, updates_done: int) -> None:
        """Raise WorkloadError if the next step would differ in a process that receives only the kept state.

        If anything else has changed since the first step, a step is tried by this optimizer and by a new one, and the
        two are compared. Everything stays as it is.
        """
        if self._beginning is None:
            return
        # What is kept moves to other workers, and what has a name in _NOT_KEPT is the trainer's.
        kept = {f"{self._name_of(one.owner)}.{one.key}" for one in self._all_kept}
        changes = [
            change
            for change in self._beginning.changes()
            if change.path not in kept and change.path.rpartition(".")[2] not in _NOT_KEPT
        ]
        if not changes:
            return
        here = self._tried_step(self._state_of_all(), updates_done)
        mine = self._optimizer
        present = self._state_of_all()
        for change in changes:
            change.restore()
        try:
            self._optimizer = self._made(self._leaves)
            elsewhere = self._tried_step(self._state_of_all(), updates_done)
        finally:
            self._optimizer = mine
            present.restore()
        if not torch.equal(here, elsewhere):
            change = next((one for one in changes if one.is_generator), changes[0])
            if change.is_generator:
                raise self._draws(change)
            raise WorkloadError(
                f"{FIELD}: {self._settings.optimizer} has changed {change.path} by update {updates_done}, which its "
                "first steps did not, and the next step depends on it, but it cannot move to another worker or into a "
                "checkpoint; keep numbers and tensors, from the first step on, in self.state[parameter], in a group or "
                f"in an attribute{change.seen_at()}"
            )

    def _tried_step(self, before: PythonState, updates_done: int) -> Tensor:
        """Return the parameters after a step; put back parameters, vectors, and the Python state `before`."""
        weights = [leaf.detach().clone() for leaf in self._leaves]
        vectors = {name: vector.clone() for name, vector in self.state.items()}
        # The Python state does not copy an optimizer's tensors, and a step may write into them.
        tensors = [value for value in _own_of(self._optimizer).values() if isinstance(value, Tensor)]
        copies = [value.detach().clone() for value in tensors]
        beginning = self._beginning
        length = self._spans[-1].start + self._leaves[-1].numel()
        try:
            gradient = torch.full((length,), _TRIED, dtype=torch.float32, device=weights[0].device)
            with untouched_randomness():
                self.step(gradient, self._rate, updates_done)
            return torch.cat([leaf.detach().flatten() for leaf in self._leaves])
        finally:
            for leaf, weight in zip(self._leaves, weights, strict=True):
                leaf.data.copy_(weight)
            for name, vector in vectors.items():
                self.state[name].copy_(vector)
            for tensor, value in zip(tensors, copies, strict=True):
                tensor.detach().copy_(value)
            before.restore()
            self._beginning = beginning

    def _state_of_all(self) -> PythonState:
        """Remember what the optimizer's class keeps, and what the optimizer keeps by parameter and by group."""
        stores = _stores(self._optimizer, self._leaves)[:-1]
        named = {self._name_of(number): (store, type(self._optimizer)) for number, store in enumerate(stores)}
        return _python_state_of(self._optimizer, self._leaves, named)

    def _name_of(self, owner: int) -> str:
        """Return how a user would write the dictionary of that number in `_stores`."""
        if owner < len(self._leaves):
            return f"self.state[{self._spans[owner].name}]"
        if owner < len(self._leaves) + len(self._optimizer.param_groups):
            return f"self.param_groups[{owner - len(self._leaves)}]"
        return "self"

    def _made(self, leaves: list[nn.Parameter]) -> Made:
        """Make the optimizer; parameters that do not decay have a group of their own."""
        plain = [leaf for leaf, spared in zip(leaves, self._spared, strict=True) if not spared]
        others = [leaf for leaf, spared in zip(leaves, self._spared, strict=True) if spared]
        groups: list[Store] = [{"params": plain}] if plain else []
        if others:
            groups.append({"params": others, "weight_decay": 0.0})
        made: Made = self._class(groups, lr=self._rate, **self._settings.values)
        if others and "weight_decay" not in made.defaults:
            raise WorkloadError(
                f"optimizer.withoutDecay: {self._settings.optimizer} has no weight_decay, so leave withoutDecay out"
            )
        return made

    def _tried(self) -> Iterator[_Kept]:
        """Take steps on copies of the parameters to find the values that the optimizer keeps; yield their places, and
        make vectors for them.
        """
        leaves = self._copies()
        trial = self._made(leaves)
        before: list[Store] = [{}] * len(leaves) + [deepcopy(_settings_of(group)) for group in trial.param_groups]
        own = _numbers_and_tensors_of(trial).items()
        before.append({key: value.clone() if isinstance(value, Tensor) else value for key, value in own})
        state = _python_state_of(trial, leaves)
        _take_steps(trial, leaves, 2)
        lengths: dict[str, int] = {}
        for owner, store in enumerate([*_stores(trial, leaves)[:-1], _numbers_and_tensors_of(trial)]):
            # Sorted, so that the vectors have one order in every process, whatever order the class writes in.
            for key, value in sorted(_settings_of(store).items()):
                if value is None:
                    continue
                is_constant = key in before[owner] and _is_same(before[owner][key], value)
                if is_constant and not (self.is_users and self._may_begin_to_change(value, leaves)):
                    continue
                name, count = self._kind_of(key, value)
                start = lengths.get(name, 0)
                lengths[name] = start + count
                shape: tuple[int, ...] = ()
                device = _CPU
                if name != _NUMBERS:
                    shape = tuple(value.shape)
                    device = value.device
                yield _Kept(owner, key, name, slice(start, start + count), shape, device, type(value))
        for name, length in lengths.items():
            dtype = torch.float64 if name == _NUMBERS else getattr(torch, name)
            self.state[name] = torch.zeros(length, dtype=dtype, device=self._leaves[0].device)
        self.state[_UNSTEPPED] = torch.zeros(len(leaves), dtype=torch.float64, device=self._leaves[0].device)
        self._check_python_state(state)

    def _may_begin_to_change(self, value: Any, leaves: Sequence[Tensor]) -> bool:
        """Return whether to keep a value that the first steps left alone: an exact float64, or a small plain tensor."""
        if isinstance(value, bool | int | float):
            return float(value) == value
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.dtype not in _PLAIN:
            return False
        if value.requires_grad or not value.is_contiguous() or value.nbytes > LARGEST_BYTES:
            return False
        return value.untyped_storage().data_ptr() not in {leaf.untyped_storage().data_ptr() for leaf in leaves}

    def _copies(self) -> list[nn.Parameter]:
        return [nn.Parameter(leaf.detach().clone()) for leaf in self._leaves]

    def _check_python_state(self, state: PythonState) -> None:
        """Refuse what changes with the steps and cannot be kept, if later steps depend on it.

        So a third step is taken with these changes and without them. A generator that has drawn is refused at once.
        """
        changes = _not_kept(state)
        for change in changes:
            if change.is_generator:
                raise self._draws(change)
        if changes:
            with_them, without = (self._after_three(state, forget=forget) for forget in (False, True))
            if any(not torch.equal(*pair) for pair in zip(with_them, without, strict=True)):
                raise WorkloadError(
                    f"{FIELD}: {self._settings.optimizer} changes {changes[0].path} with each step, and later steps "
                    "depend on it, but it cannot move to another worker or into a checkpoint; keep numbers and "
                    f"tensors, in self.state[parameter], in a group or in an attribute{changes[0].seen_at()}"
                )

    def _draws(self, change: Change) -> WorkloadError:
        """Return the error of an optimizer with a generator of its own."""
        return WorkloadError(
            f"{FIELD}: {self._settings.optimizer} draws from {change.path}, a generator of its own, which cannot move "
            "to another worker or into a checkpoint; draw from torch's own, which the trainer seeds for each update"
            f"{change.seen_at()}"
        )

    def _after_three(self, state: PythonState, *, forget: bool) -> list[nn.Parameter]:
        """Return copied parameters after three steps; to `forget`, put back what is not kept before the third."""
        state.restore()
        leaves = self._copies()
        with untouched_randomness():
            seed_generators(draw_seed(self._seed, "optimizer", 0))
            made = self._made(leaves)
            of_made = _python_state_of(made, leaves)
            _take_steps(made, leaves, 2)
            if forget:
                for change in (*_not_kept(of_made), *_not_kept(state)):
                    change.restore()
            seed_generators(draw_seed(self._seed, "optimizer", 2))
            _take_steps(made, leaves, 1)
        state.restore()
        return leaves

    def _kind_of(self, key: str, value: Any) -> tuple[str, int]:
        """Return the name of the vector for a value, and how many of the vector's elements the value takes.

        Raises WorkloadError for a value that is neither a tensor nor a number.
        """
        if isinstance(value, Tensor):
            return str(value.dtype).removeprefix("torch."), value.numel()
        if isinstance(value, bool | int | float):
            return _NUMBERS, 1
        raise WorkloadError(
            f"{FIELD}: {self._settings.optimizer} keeps a {type(value).__name__} in {key!r}, which cannot move to "
            "another worker; it may keep tensors and numbers"
        )

    def _bring_back(self, stepped: Sequence[bool]) -> None:
        stores = _stores(self._optimizer, self._leaves)
        numbers = self.state[_NUMBERS].tolist() if _NUMBERS in self.state else []
        for kept in self._all_kept:
            if kept.owner < len(stepped) and not stepped[kept.owner]:
                continue
            if kept.name == _NUMBERS:
                stores[kept.owner][kept.key] = kept.kind(numbers[kept.place.start])
            else:
                stores[kept.owner][kept.key] = self.state[kept.name][kept.place].view(kept.shape).to(kept.device)

    def _keep(self, stepped: Sequence[bool]) -> None:
        stores = _stores(self._optimizer, self._leaves)
        numbers = []
        for kept in self._all_kept:
            if kept.owner < len(stepped) and not stepped[kept.owner]:
                # A parameter without a step has its place among the numbers all the same.
                if kept.name == _NUMBERS:
                    numbers.append(0.0)
                continue
            value = stores[kept.owner].get(kept.key)
            if kept.name == _NUMBERS and isinstance(value, bool | int | float):
                numbers.append(float(value))
            elif isinstance(value, Tensor) and tuple(value.shape) == kept.shape:
                self.state[kept.name][kept.place].view(kept.shape).copy_(value)
            else:
                raise WorkloadError(
                    f"{FIELD}: {self._settings.optimizer} keeps something else in {kept.key!r} than at first, which "
                    "cannot move to another worker"
                )
        if numbers:
            self.state[_NUMBERS].copy_(torch.tensor(numbers, dtype=torch.float64))


def _stores(optimizer: Made, leaves: list[nn.Parameter]) -> list[Store]:
    """Return the dictionaries in which an optimizer keeps values: of each parameter, of each group, its attributes."""
    return [*(optimizer.state[leaf] for leaf in leaves), *optimizer.param_groups, vars(optimizer)]


def _own_of(optimizer: Made) -> MutableMapping[str, Any]:
    """Return the attributes of the optimizer other than those that every optimizer has."""
    # What every optimizer has depends on the version of torch, so one is made to see.
    return _Own(vars(optimizer), vars(torch.optim.Optimizer([nn.Parameter(torch.zeros(1, dtype=torch.float32))], {})))


def _numbers_and_tensors_of(optimizer: Made) -> Store:
    """Return the numbers and tensors among the attributes of `_own_of`, which may be kept."""
    return {key: value for key, value in _own_of(optimizer).items() if isinstance(value, int | float | Tensor)}


class _Own(MutableMapping[str, Any]):
    """The items of a dictionary whose keys are not in `base`."""

    def __init__(self, whole: dict[Any, Any], base: Container[Any]) -> None:
        self._whole = whole
        self._base = base

    def __getitem__(self, key: str) -> Any:
        return self._whole[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._whole[key] = value

    def __delitem__(self, key: str) -> None:
        del self._whole[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._whole if key not in self._base)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _python_state_of(
    optimizer: Made, leaves: list[nn.Parameter], more: Mapping[str, tuple[Store, Any]] | None = None
) -> PythonState:
    """Remember what the optimizer's class keeps, and `more` dictionaries by name."""
    own = {
        "self": (_own_of(optimizer), type(optimizer)),
        "self.state": (_Own(optimizer.state, set(leaves)), type(optimizer)),
    }
    return PythonState({"step": type(optimizer)}, leaves, {**own, **(more or {})})


def _not_kept(state: PythonState) -> list[Change]:
    """Return what has changed apart from the optimizer's numbers and tensors, which are kept."""

    def is_kept(change: Change) -> bool:
        number_or_tensor = isinstance(change.now, int | float | Tensor)
        return number_or_tensor and change.is_attribute_of("self") and not change.is_generator

    return [change for change in state.changes() if not is_kept(change)]


def _take_steps(optimizer: Made, leaves: list[nn.Parameter], steps: int) -> None:
    for _ in range(steps):
        for leaf in leaves:
            leaf.grad = torch.full_like(leaf, _TRIED)
        optimizer.step()


def _settings_of(store: Store) -> Store:
    return {key: value for key, value in store.items() if key not in _NOT_KEPT}


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return torch.equal(before, now)
    return type(before) is type(now) and bool(before == now)
