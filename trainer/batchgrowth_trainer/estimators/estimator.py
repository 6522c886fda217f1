"""The estimators: what they take and learn, and how they predict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from batchgrowth.errors import Fault, SpecError
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor, nn
from torch.nn import functional

from batchgrowth_trainer.estimators import fitting
from batchgrowth_trainer.estimators.examples import (
    Given,
    TakesData,
    as_floats,
    as_numpy,
    check_labels,
    encoded,
    is_dataset,
    labels_in,
    plain_label,
)
from batchgrowth_trainer.estimators.job import NestedParameters, job_with
from batchgrowth_trainer.estimators.workload import (
    Recipe,
    accuracy,
    accuracy_of_probabilities,
    check_loss,
    check_module,
)
from batchgrowth_trainer.record.checkpoint import Saved
from batchgrowth_trainer.record.functions import entrypoint_of
from batchgrowth_trainer.replica.data import fetch, to_device
from batchgrowth_trainer.workload import predict

_SHARED = ("cluster", "callbacks")
"""The parameters that a clone shares: they stand for processes, files and connections."""
_ORDERS = ("auto", "given", "sorted")
_INDICES = (torch.int64, torch.uint8)
"""The dtypes that torch's losses take for the numbers of classes."""
_LARGEST_SEED = 2**31 - 1


class _Estimator(TakesData, NestedParameters):
    """What both estimators have in common; see DaskClassifier."""

    history_: list[dict[str, Any]]
    meta_: dict[str, Any]

    def __init__(
        self,
        module: Any = None,
        loss: Any = None,
        optimizer: Any = torch.optim.SGD,
        *,
        batch_size: Any = 32,
        max_batch_size: int | None = None,
        max_epochs: int = 20,
        cluster: Any = None,
        device: str = "auto",
        grads_per_worker: int = 32,
        min_workers: int = 1,
        max_workers: int | None = None,
        random_state: Any = None,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        callbacks: Sequence[Any] = (),
        warm_start: bool = False,
        order: str = "auto",
        output_dir: str | Path | None = None,
        verbose: bool = False,
        spec: Mapping[str, Any] | None = None,
        **nested: Any,
    ) -> None:
        self.module = module
        self.loss = loss
        self.optimizer = optimizer
        self.batch_size = batch_size
        self.max_batch_size = max_batch_size
        self.max_epochs = max_epochs
        self.cluster = cluster
        self.device = device
        self.grads_per_worker = grads_per_worker
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.random_state = random_state
        self.metrics = metrics
        self.callbacks = callbacks
        self.warm_start = warm_start
        self.order = order
        self.output_dir = output_dir
        self.verbose = verbose
        self.spec = spec
        self._nested = dict(nested)

    # --- Training ---

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, validation: Any = None) -> Self:
        """Train for `max_epochs` epochs, from the beginning or, with `warm_start`, from where the last fit ended.

        y are the labels for a classifier, numbers or strings, shape (N,), and for a regressor numbers, shape (N,) or
        (N, targets); X may also be a Dataset, which has both. `validation` is (X, y) or a Dataset, on which the loss
        and `metrics` are computed after each epoch. With `warm_start`, nothing changes if the last fit has reached the
        end that `spec` sets, or was ended early.
        Raises ValueError for parameters and data with faults, WorkloadError for code with faults.
        """
        goes_on = self.warm_start and hasattr(self, "module_")
        return self._trained(X, y, sample_weight, validation, goes_on=goes_on, epochs=self.max_epochs)

    def _trained(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        validation: Any,
        *,
        goes_on: bool,
        epochs: int,
    ) -> Self:
        self._check_parameters()
        with self._unchanged_by_errors():
            train = self._training_set(X, y, sample_weight, reset=not goes_on)
            held_out = self._validation_set(validation)
            before: Saved | None = self._saved if goes_on else None
            done = int(self.n_iter_) if goes_on else 0
            seed = self.seed_ if goes_on else self._seed()
            name = "linear"
            if self.module is not None:
                name = str(getattr(self.module, "__name__", type(self.module).__name__))
            recipe = Recipe(
                module=self.module,
                module_settings=self.nested("module"),
                loss=self._loss(),
                loss_settings=self.nested("loss"),
                sizes=self._sizes(),
                train=train,
                validation=held_out,
                metrics=self._metrics() if held_out is not None else {},
            )
            job = job_with(
                self,
                name="estimator",
                entrypoint=entrypoint_of(name, {}),
                examples=len(train),
                # The job's epochs count from the first fit, since its updates go on from that fit's checkpoint.
                epochs=done + epochs,
                seed=seed,
            )
            fitted = fitting.fit(
                job,
                recipe,
                cluster=self.cluster,
                before=before,
                folder=None if self.output_dir is None else Path(self.output_dir),
                sinks=self.callbacks,
                progress=bool(self.verbose),
            )
            if fitted is not None:
                self._learn(job, recipe, fitted, seed, goes_on=goes_on)
        return self

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Put all attributes back if the block raises.

        A fit that fails must not leave the features and classes of its data to a model that was trained on others.
        """
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _learn(self, job: Any, recipe: Recipe, fitted: fitting.Fitted, seed: int, *, goes_on: bool) -> None:
        """Set the attributes that a fit leaves."""
        last = fitted.epochs[-1]
        history = list(self.history_) if goes_on else []
        self.module_ = fitting.trained_module(job, recipe, fitted.state_dict)
        self.history_ = [*history, *map(dict, fitted.epochs)]
        self.job_ = job
        self.seed_ = seed
        self.n_iter_ = fitted.saved.snapshot.position.epoch
        self.batch_size_ = last["batch_size"]
        self.n_workers_ = last["n_workers"]
        self.weights_sha256_ = fitted.summary["weightsSha256"]
        # `partial_fit` adds its own call after this; a `fit` does not count as a call.
        calls = self.meta_["partial_fit__calls"] if goes_on else 0
        self.meta_ = {
            "n_updates": fitted.saved.snapshot.position.update,
            "n_data": self.n_iter_ * len(recipe.train),
            "len_dataset": len(recipe.train),
            "n_workers": last["n_workers"],
            "batch_size_": last["batch_size"],
            "lr_": last["lr"],
            "partial_fit__calls": calls,
            "partial_fit__time": fitted.summary["seconds"],
        }
        self._saved = fitted.saved

    def _check_parameters(self) -> None:
        # Not in __init__: scikit-learn sets parameters later too, and expects __init__ to check none.
        self._check_nested()
        check_module(self.module, self.nested("module"))
        check_loss(self._loss(), self.nested("loss"))
        if self.order not in _ORDERS:
            raise SpecError([Fault("order", f"{self.order!r} was given", f"give one of {', '.join(_ORDERS)}")])
        epochs = self.max_epochs
        if isinstance(epochs, bool) or not hasattr(epochs, "__index__") or epochs < 1:
            raise SpecError([Fault("max_epochs", f"{epochs!r} was given", "give a whole number of at least 1")])
        if self.spec is not None and not isinstance(self.spec, Mapping):
            given = f"a {type(self.spec).__name__} was given"
            raise SpecError([Fault("spec", given, "give fields of a manifest's spec, as keywords of train in a dict")])

    def _seed(self) -> int:
        # A whole number is the job's own seed, so that a manifest with this seed has the same bits.
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(_LARGEST_SEED))

    def _sizes(self) -> dict[str, int]:
        sizes = {"n_outputs": self._num_outputs()}
        if hasattr(self, "n_features_in_"):
            sizes["n_features_in"] = self.n_features_in_
        return sizes

    # A classifier and a regressor differ in these.

    def _loss(self) -> Any:
        raise NotImplementedError

    def _num_outputs(self) -> int:
        raise NotImplementedError

    def _metrics(self) -> Mapping[str, Callable[..., Any]]:
        return self.metrics or {}

    # --- Predicting ---

    def _outputs(self, X: Any) -> np.ndarray:
        """Return the module's outputs in eval mode, float32, shape (N, …).

        The module always gets `grads_per_worker` examples at once, and the last batch is filled up: kernels round
        differently for other batch sizes, so an example's output would depend on how many others come with it.
        """
        inputs = self._inputs(X)
        count = len(inputs)  # type: ignore[arg-type]
        size = int(self.job_.spec.shard)
        device = torch.device(
            "cuda" if self.job_.spec.workload.device != "CPU" and torch.cuda.is_available() else "cpu"
        )
        module = self.module_.to(device).eval()
        parts = []
        with torch.no_grad():
            for first in range(0, count, size):
                numbers = torch.arange(first, first + size, dtype=torch.int64).clamp_(max=count - 1)
                if isinstance(inputs, Tensor):
                    batch: Any = inputs[numbers]
                else:
                    batch, _ = fetch(inputs, numbers)  # type: ignore[arg-type]
                output = predict(module, to_device(batch, device))
                parts.append(output[: count - first].to("cpu", torch.float32))
        return torch.cat(parts).numpy()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the module on the CPU, and the cluster only if it is an address, no connection."""
        state: dict[str, Any] = super().__getstate__()
        module = state.get("module_")
        if isinstance(module, nn.Module):
            state["module_"] = module.cpu()
        if not isinstance(state.get("cluster"), str | type(None)):
            state["cluster"] = None
        return state

    def __sklearn_clone__(self) -> Self:
        """Return an estimator with the same parameters that has learned nothing; it shares cluster and callbacks."""
        params = self.get_params(deep=False)
        copied = {name: value if name in _SHARED else clone(value, safe=False) for name, value in params.items()}
        made = type(self)(**copied)
        if hasattr(self, "_metadata_request"):
            made._metadata_request = deepcopy(self._metadata_request)
        return made

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class DaskClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A neural network that classifies, trained with a batch that may grow, by workers that change nothing but speed.

    `module` is a class derived from torch.nn.Module, or an object of one; `module__NAME` are its arguments. A module
    with parameters named n_features_in and n_outputs gets the number of features, and of classes (1 for a binary loss).
    By default it is one linear layer. The parameters of AdaDamp's estimators have AdaDamp's names: docs/estimators.md
    lists them all.
    """

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch, going on from the last fit if there was one. `classes` has every label of any call.

        The same data in k calls leave the weights of one `fit` with max_epochs=k. Raises what `fit` raises.
        """
        goes_on = hasattr(self, "module_")
        if not goes_on:
            self._all_classes = None if classes is None else np.unique(column_or_1d(np.asarray(classes)))
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            given = f"{np.unique(np.asarray(classes)).tolist()} were given, and {self.classes_.tolist()} before"
            raise SpecError([Fault("classes", given, "give the same classes, or leave them out after the first call")])
        try:
            self._trained(X, y, sample_weight, None, goes_on=goes_on, epochs=1)
        finally:
            # For this call alone: a later `fit` takes its classes from its own labels.
            self._all_classes = None
        self.meta_["partial_fit__calls"] += 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each example, shape (N,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, float64, shape (N, classes), in the order of `classes_`."""
        outputs = self._outputs(X).astype(np.float64)
        return _probabilities(outputs, self._loss())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy, in eval mode; y may be left out for a Dataset."""
        if y is None and is_dataset(X):
            y = labels_in(X)
        return float(accuracy_score(as_numpy(y), self.predict(X), sample_weight=sample_weight))

    def _loss(self) -> Any:
        return nn.CrossEntropyLoss if self.loss is None else self.loss

    def _num_outputs(self) -> int:
        if _is_of(self._loss(), nn.BCEWithLogitsLoss, nn.BCELoss):
            return 1
        return max(2, len(self.classes_))

    def _metrics(self) -> Mapping[str, Callable[..., Any]]:
        if self.metrics is not None:
            return self.metrics
        return {"accuracy": accuracy_of_probabilities if _is_of(self._loss(), nn.BCELoss) else accuracy}

    def _target(self, y: np.ndarray, *, reset: bool) -> Tensor:
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_labels(y)
        check_classification_targets(y)
        if reset:
            self._set_classes(y)
        return torch.from_numpy(encoded(y, self.classes_))

    def _given(self, dataset: Any, *, reset: bool) -> Given:
        labels = labels_in(dataset)
        check_labels(labels)
        if reset:
            self._set_classes(labels)
        encoded(labels, self.classes_)  # refuses other labels
        # If the targets are the numbers of their classes, the loss gets them as they are, which saves look-ups.
        _, target = fetch(dataset, torch.tensor([0], dtype=torch.int64))
        is_index = isinstance(target, Tensor) and target.dtype in _INDICES
        if is_index and np.array_equal(self.classes_, np.arange(len(self.classes_))):
            return Given(dataset)
        return Given(dataset, self.classes_)

    def _set_classes(self, labels: np.ndarray) -> None:
        known = getattr(self, "_all_classes", None)
        self.classes_ = np.unique(labels) if known is None else known
        if len(self.classes_) < 2:
            given = f"all examples have the class {plain_label(self.classes_[0])!r}"
            raise SpecError([Fault("y", given, "give examples of two classes or more: one class has nothing to learn")])
        if _is_of(self._loss(), nn.BCEWithLogitsLoss, nn.BCELoss) and len(self.classes_) > 2:
            given = f"y has {len(self.classes_)} classes, and this loss tells two apart"
            raise SpecError([Fault("loss", given, "give torch.nn.CrossEntropyLoss")])


class DaskRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A neural network for regression, trained as DaskClassifier is; its score is R².

    A module with a parameter named n_outputs gets the number of targets.
    """

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch, going on from the last fit if there was one.

        The same data in k calls leave the weights of one `fit` with max_epochs=k. Raises what `fit` raises.
        """
        self._trained(X, y, sample_weight, None, goes_on=hasattr(self, "module_"), epochs=1)
        self.meta_["partial_fit__calls"] += 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions, float64, in the shape that y had: (N,) or (N, targets)."""
        outputs: np.ndarray = self._outputs(X).astype(np.float64)
        if self.n_outputs_ is None:
            return np.reshape(outputs, len(outputs))
        return np.reshape(outputs, (len(outputs), -1))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R², in eval mode; y may be left out for a Dataset."""
        if y is None and is_dataset(X):
            y = labels_in(X)
        return float(r2_score(as_numpy(y), self.predict(X), sample_weight=sample_weight))

    def _loss(self) -> Any:
        return nn.MSELoss if self.loss is None else self.loss

    def _num_outputs(self) -> int:
        return self.n_outputs_ or 1

    def _target(self, y: np.ndarray, *, reset: bool) -> Tensor:
        shape = y.shape[1] if y.ndim > 1 else None
        if reset:
            self.n_outputs_ = shape
        elif shape != self.n_outputs_:
            given = f"{shape or 1} targets were given, and {self.n_outputs_ or 1} before"
            raise SpecError([Fault("y", given, "give as many as in the first call")])
        return as_floats(y)

    def _given(self, dataset: Any, *, reset: bool) -> Given:
        if reset:
            _, target = fetch(dataset, torch.tensor([0], dtype=torch.int64))
            self.n_outputs_ = target.shape[1] if isinstance(target, Tensor) and target.ndim > 1 else None
        return Given(dataset)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _probabilities(outputs: np.ndarray, loss: Any) -> np.ndarray:
    """Return the probability of each class by the outputs of a module trained with this loss, shape (N, classes)."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        second = outputs.reshape(-1)
        if not _is_of(loss, nn.BCELoss):
            second = expit(second)
        return np.stack([1 - second, second], axis=1)
    likely: np.ndarray = np.exp(outputs) if _is_of(loss, nn.NLLLoss) else softmax(outputs, axis=1)
    return likely


_CLASSES = (
    (functional.binary_cross_entropy, nn.BCELoss),
    (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    (functional.nll_loss, nn.NLLLoss),
)
"""Functions of torch, and the classes of the same losses."""


def _is_of(loss: Any, *kinds: type) -> bool:
    """Return whether the loss is one of these classes, an object of one, or torch's function for one."""
    loss = next((kind for function, kind in _CLASSES if loss is function), loss)
    return isinstance(loss, kinds) or (isinstance(loss, type) and issubclass(loss, kinds))
