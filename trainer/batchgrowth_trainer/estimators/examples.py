"""The training set of a fit: `TakesData` makes it of the X, y and sample_weight that `fit` was given.

A fit's tensors reach workers of this machine in a file of the fit's own folder, which they map into memory, and other
workers inside the function that makes the workload: in both cases once per fit, not once per epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import torch
from batchgrowth.errors import DataError, Fault, SpecError
from dask import is_dask_collection
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from batchgrowth_trainer.replica.data import fetch, pair
from batchgrowth_trainer.workload import Dataset
from batchgrowth_trainer.workloads.dask_arrays import DaskArrays

MOST_REPEATED = 10
"""The most that whole-number weights may multiply the number of examples; beyond, they scale losses."""
_FILE = "examples.pt"
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, an odd number: Knuth's multiplicative hashing
_HASHED_ROWS = 4096  # at a time, since a row takes eight times its bytes while it is hashed


class InMemory:
    """Tensors of equal length, of which one row each makes an example: inputs, target, and perhaps a weight.

    `travel` says how they are pickled: "inside" the pickle, in a "file" of a folder, or "not at all", for a record of a
    fit that needs no data. The inputs of one example are in the pickle in any case, since a lazy module needs them.
    """

    def __init__(self, *tensors: Tensor, is_weighted: bool = False) -> None:
        self.is_weighted = is_weighted
        self.travels = "inside"
        self._tensors: tuple[Tensor, ...] | None = tensors
        self._length = len(tensors[0])
        self._first: Any = None
        self._path = ""

    def __len__(self) -> int:
        return self._length

    def travel(self, how: str, folder: Path, name: str) -> None:
        """Travel by `how` from now on; a "file" is written into the folder."""
        self.travels = how
        if how == "file":
            assert self._tensors is not None
            path = folder / f"{name}-{_FILE}"
            # Cloned, since torch saves the whole memory of a view: a slice would bring all other rows along.
            torch.save([tensor.contiguous().clone() for tensor in self._tensors], path)
            self._path = str(path)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled; the tensors only if they travel inside."""
        state = dict(vars(self))
        if self.travels != "inside" and self._tensors is not None:
            state["_tensors"] = None
            state["_first"] = first_inputs(self.dataset())
        if self.travels != "file":
            state["_path"] = ""
        return state

    def dataset(self) -> Dataset:
        """Return the rows as a data set; if they did not travel, one whose examples raise DataError."""
        tensors = self._tensors
        if tensors is None and self._path and Path(self._path).is_file():
            tensors = tuple(torch.load(self._path, mmap=True, weights_only=True))
        if tensors is None:
            return _Gone(self._length, self._first)
        return TensorDataset(*tensors)


@dataclass(frozen=True, slots=True)
class _Gone:
    """The examples of a fit that is over: the run's folder has no data but the inputs of the first example."""

    length: int
    first: Any

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        raise DataError(f"example {index}: the data of a fit are not kept with its run; fit again to train with them")


class Given:
    """A data set that the user gave; `labels` are the classes of its targets if those are not 0, 1, … themselves."""

    is_weighted = False

    def __init__(self, dataset: Any, labels: np.ndarray | None = None) -> None:
        self._dataset = dataset
        self._labels = labels
        self._length = len(dataset)
        self._first: Any = None
        self._travels = True

    def __len__(self) -> int:
        return self._length

    def travel(self, how: str, folder: Path, name: str) -> None:  # noqa: ARG002
        """Travel as the data set's own pickle says, or not at all."""
        self._travels = how != "not at all"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled."""
        if self._travels or self._dataset is None:
            return vars(self)
        return {**vars(self), "_dataset": None, "_first": first_inputs(self._dataset)}

    def dataset(self) -> Dataset:
        """Return the data set, with the number of its class as each target."""
        if self._dataset is None:
            return _Gone(self._length, self._first)
        if self._labels is None:
            own: Dataset = self._dataset
            return own
        return _Encoded(self._dataset, self._labels)


TrainingSet = InMemory | Given


def first_inputs(dataset: Dataset) -> Any:
    """Return the inputs of the first example, as a batch of one; also of a fit that is over."""
    if isinstance(dataset, _Gone):
        return dataset.first
    inputs, _ = fetch(dataset, torch.tensor([0], dtype=torch.int64))
    return inputs


class _Encoded:
    """A data set whose targets are replaced by the numbers of their classes."""

    def __init__(self, dataset: Any, classes: np.ndarray) -> None:
        self._dataset = dataset
        self._numbers = {label: number for number, label in enumerate(classes.tolist())}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        example = self._dataset[index]
        inputs, target = pair(example, "train")
        parts = inputs if isinstance(example, list | tuple) and len(example) > 2 else (inputs,)
        return (*parts, self._numbers[plain_label(target)])


def plain_label(target: Any) -> Any:
    """Return a label as Python's own value: a tensor's or an array's single element."""
    return target.item() if hasattr(target, "item") else target


def encoded(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the number of each label's class, int64, shape (N,). Raises SpecError for a label of no class."""
    places = np.searchsorted(classes, y)
    # A label above all classes has a place behind the last one; the comparison below refuses it.
    places = np.clip(places, 0, len(classes) - 1)
    odd = classes[places] != y
    if np.any(odd):
        where = int(np.argmax(odd))
        listed = ", ".join(map(str, classes[:10].tolist()))
        given = f"row {where} has the label {plain_label(y[where])!r}"
        raise SpecError([Fault("y", given, f"give labels among {listed}")])
    return places.astype(np.int64)


def check_rows(X: Any, name: str = "X") -> None:
    """Raise SpecError if X is a list of rows of different lengths, which no array can hold."""
    if isinstance(X, np.ndarray) and X.dtype != object:
        return
    if not isinstance(X, list | tuple | np.ndarray):
        return
    first = None
    for index, row in enumerate(X):
        if not isinstance(row, list | tuple | np.ndarray) or np.ndim(row) == 0:
            return
        first = len(row) if first is None else first
        if len(row) != first:
            given = f"row 0 has {first} values and row {index} has {len(row)}"
            remedy = "give rows of one length, for instance filled up, or a torch Dataset with tensors of one shape"
            raise SpecError([Fault(name, given, remedy)])


def check_labels(y: np.ndarray) -> None:
    """Raise SpecError if an example has several labels, or a label is missing: None or NaN."""
    if y.ndim != 1:
        given = f"shape {y.shape}, which has several labels for each example"
        raise SpecError([Fault("y", given, "give one label for each, shape (N,): the number of its class or a text")])
    missing = []
    for index, label in enumerate(y.tolist()):
        # NaN does not equal itself, and for pandas' NA the comparison is neither true nor false.
        same = label == label
        if label is None or not isinstance(same, bool | np.bool_) or not same:
            missing.append(index)
    if missing:
        given = f"row {missing[0]} has the label {y.tolist()[missing[0]]!r}, and {len(missing)} labels are missing"
        raise SpecError([Fault("y", given, "leave out the examples without a label; y contains NaN")])


def as_floats(y: np.ndarray) -> Tensor:
    """Return targets as float32. Raises SpecError if one is not finite then."""
    with np.errstate(over="ignore"):  # an overflow is reported below, with its row
        floats = np.ascontiguousarray(y, dtype=np.float32)
    odd = ~np.isfinite(floats.reshape(len(floats), -1)).all(axis=1)
    if np.any(odd):
        where = int(np.argmax(odd))
        given = f"row {where} has {np.asarray(y[where]).tolist()}, which is not finite as float32"
        raise SpecError([Fault("y", given, "scale the targets, or leave such rows out")])
    return tensor_of(floats)


def chunked(inputs: Any, targets: np.ndarray) -> DaskArrays:
    """Return rows of a Dask array or frame, whose chunks are computed where they are trained, with these targets."""
    array = dask_array(inputs).astype(np.float32)
    return DaskArrays(array, da.from_array(targets, chunks=(array.chunks[0], *targets.shape[1:])))


def dask_array(given: Any) -> Any:
    """Return a Dask array of known lengths."""
    if hasattr(given, "to_dask_array"):
        return given.to_dask_array(lengths=True)
    if any(np.isnan(length) for length in given.chunks[0]):
        return given.compute_chunk_sizes()
    return given


# --- Which examples there are, and in which order ---


def arranged(
    inputs: Tensor, target: Tensor, weights: np.ndarray | None, order: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return inputs, targets and weights of the training set, in its order; the weights are None if all are equal.

    Whole-number weights are repetitions of their examples, unless they would make the set more than MOST_REPEATED times
    as long. Other weights are scaled to a mean of 1. All are above 0.

    With the order "given", the examples keep their order; with "sorted", they get one that does not depend on it; with
    "auto", they are sorted if one of them repeats: so a weight of 2 does the same as the example given twice, anywhere.
    """
    rows = np.arange(len(target))
    scaled = None
    if weights is not None:
        whole = bool(np.all(weights == np.floor(weights)))
        if whole and weights.sum() <= MOST_REPEATED * len(rows):
            rows = np.repeat(rows, weights.astype(np.int64))
        elif np.any(weights != weights[0]):
            scaled = weights / weights.mean()
    if order != "given":
        keys = _keys(inputs, target)[rows]
        if order == "sorted" or len(np.unique(keys)) < len(keys):
            # Stable, since equal examples may have different weights.
            rows = rows[np.argsort(keys, kind="stable")]
    of_rows = None
    if scaled is not None:
        of_rows = torch.from_numpy(scaled[rows].astype(np.float32))
    if np.array_equal(rows, np.arange(len(target))):
        return inputs, target, of_rows
    picked = torch.from_numpy(rows)
    return inputs[picked], target[picked], of_rows


def _keys(inputs: Tensor, target: Tensor) -> np.ndarray:
    """Return a number for each example, uint64, shape (N,): equal examples have equal numbers, on every machine."""
    total = np.zeros(len(target), dtype=np.uint64)
    for tensor in (inputs, target):
        table = np.ascontiguousarray(tensor.reshape(len(target), -1).numpy())
        words = table.view(np.uint8).reshape(len(target), -1)
        factors = _factors(words.shape[1])
        for first in range(0, len(words), _HASHED_ROWS):
            part = slice(first, first + _HASHED_ROWS)
            total[part] = total[part] * _ODD + ((words[part].astype(np.uint64) + np.uint64(1)) * factors).sum(axis=1)
    return total


def _factors(count: int) -> np.ndarray:
    """Return `count` odd numbers that look random, uint64: splitmix64 of 1, 2, …, Steele et al., 2014."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, count + 1, dtype=np.uint64) * _ODD
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def labels_in(dataset: Any) -> np.ndarray:
    """Return the targets of a data set, shape (N,): of a TensorDataset or of `targets` at once, else one by one.

    If the data set has a `target_transform`, `targets` are not the targets of its examples.
    """
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[-1].numpy()
    targets = getattr(dataset, "targets", None) if getattr(dataset, "target_transform", None) is None else None
    if isinstance(targets, Tensor | Sequence | np.ndarray) and len(targets) == len(dataset):
        return np.asarray(targets)
    return np.array([plain_label(pair(dataset[index], "train")[1]) for index in range(len(dataset))])


# --- From X, y and sample_weight to examples ---


class TakesData:
    """Makes examples of a user's X, y and sample_weight; `fit` keeps the features and classes that they decide."""

    metrics: Mapping[str, Callable[..., Any]] | None
    order: str
    n_features_in_: int

    def _target(self, y: np.ndarray, *, reset: bool) -> Tensor:
        raise NotImplementedError

    def _given(self, dataset: Any, *, reset: bool) -> Given:
        raise NotImplementedError

    def _training_set(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> TrainingSet:
        """Return the examples of a fit; `reset` if they decide the features and the classes."""
        if is_dataset(X):
            return self._dataset(X, y, sample_weight, reset=reset)
        if is_dask_collection(X):
            return self._chunks(X, y, sample_weight, reset=reset)
        inputs, labels = self._arrays(X, y, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, inputs, dtype=np.float64, ensure_non_negative=True)
            # scikit-learn asks that a weight of 0 does the same as leaving the example out.
            kept = np.flatnonzero(weights)
            if not len(kept):
                raise SpecError([Fault("sample_weight", "all weights are zero", "give some example a weight above 0")])
            inputs = inputs[torch.from_numpy(kept)]
            labels = labels[kept]
            weights = weights[kept]
        target = self._target(labels, reset=reset)
        inputs, target, scaled = arranged(inputs, target, weights, self.order)
        if scaled is None:
            return InMemory(inputs, target)
        return InMemory(inputs, target, scaled, is_weighted=True)

    def _dataset(self, dataset: Any, y: Any, sample_weight: Any, *, reset: bool) -> Given:
        if y is not None or sample_weight is not None:
            name = "y" if y is not None else "sample_weight"
            raise SpecError([Fault(name, "given with a Dataset", "leave it out: the Dataset has inputs and targets")])
        if not hasattr(dataset, "__len__") or not len(dataset):
            given = "a Dataset without examples, or without a length, was given"
            raise SpecError([Fault("X", given, "give a map-style Dataset with at least one example")])
        inputs = first_inputs(dataset)
        if reset and isinstance(inputs, Tensor) and inputs.ndim == 2:
            self.n_features_in_ = inputs.shape[1]
        return self._given(dataset, reset=reset)

    def _chunks(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Given:
        if sample_weight is not None:
            given = "given with a Dask collection"
            raise SpecError([Fault("sample_weight", given, "leave it out, or give X as an array in memory")])
        if y is None:
            raise SpecError([Fault("y", "not given", "give the targets of the rows of X")])
        array = dask_array(X)
        labels = np.asarray(y.compute() if is_dask_collection(y) else y)
        if len(labels) != len(array):
            given = f"{len(labels):,} targets were given for {len(array):,} rows of X"
            raise SpecError([Fault("y", given, "give one for each row")])
        if not reset and array.shape[1] != self.n_features_in_:
            given = f"{array.shape[1]} features were given, and {self.n_features_in_} before"
            raise SpecError([Fault("X", given, "give as many as in the first call")])
        # scikit-learn keeps or compares the number and names of features; the empty pandas frame `_meta` has both.
        validate_data(self, X._meta if hasattr(X, "columns") else array, skip_check_array=True, reset=reset)
        return Given(chunked(array, self._target(labels, reset=reset).numpy()))

    def _arrays(self, X: Any, y: Any, *, reset: bool) -> tuple[Tensor, np.ndarray]:
        """Return X as a tensor and y as an array, checked."""
        check_rows(X)
        whole = _whole_numbers(X)
        labels = np.asarray(as_numpy(y))
        if isinstance(self, ClassifierMixin) and labels.dtype == object and labels.ndim == 1:
            check_labels(labels)  # first, since scikit-learn's check ends with a TypeError at pandas' NA
        checked, labels = validate_data(
            self, as_numpy(X), as_numpy(y), reset=reset, dtype=np.float32 if whole is None else whole,
            allow_nd=True, order="C", multi_output=True, y_numeric=isinstance(self, RegressorMixin),
        )  # fmt: skip
        return tensor_of(checked), labels

    def _inputs(self, X: Any) -> Tensor | TorchDataset[Any]:
        """Return X, checked unless it is a Dataset."""
        check_is_fitted(self, "module_")
        if is_dataset(X):
            return X  # type: ignore[no-any-return]
        given = X.compute() if is_dask_collection(X) else X
        check_rows(given)
        whole = _whole_numbers(given)
        checked = validate_data(
            self, as_numpy(given), reset=False, dtype=np.float32 if whole is None else whole, allow_nd=True, order="C"
        )
        return tensor_of(checked)

    def _validation_set(self, validation: Any) -> TrainingSet | None:
        if validation is None:
            if self.metrics:
                given = "given without validation data, on which they would be computed"
                raise SpecError([Fault("metrics", given, "call fit(X, y, validation=(X, y)), or leave metrics out")])
            return None
        if is_dataset(validation):
            return self._given(validation, reset=False)
        if not isinstance(validation, tuple) or len(validation) != 2:
            raise SpecError(
                [Fault("validation", f"a {type(validation).__name__} was given", "give (X, y) or a Dataset")]
            )
        inputs, labels = self._arrays(*validation, reset=False)
        return InMemory(inputs, self._target(labels, reset=False))


def is_dataset(X: Any) -> bool:
    """Return whether X is a data set of torch, which has the targets, too."""
    return isinstance(X, TorchDataset)


def as_numpy(given: Any) -> Any:
    """Return a tensor as an array, and anything else as it is."""
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else given


def _whole_numbers(X: Any) -> Any:
    """Return the dtype of a tensor of whole numbers, which stay what they are, for instance tokens; else None."""
    if isinstance(X, Tensor) and not X.is_floating_point() and not X.is_complex():
        return as_numpy(X[:0]).dtype
    return None


def tensor_of(array: np.ndarray) -> Tensor:
    """Return the array as a tensor; a read-only one, such as a memory map, is copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
