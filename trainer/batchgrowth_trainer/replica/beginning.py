"""How a process was when its training began: the Python state of users' code, and the settings of the process.

By contract no update depends on a change of either. `later.py` refuses changed settings, and compares a shard computed
with the Python state as it is now with the same shard computed with the state as it was then.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from batchgrowth_trainer.replica.python_state import Change, PythonState

TIMES_LONGER = 1000
"""Ratio of the time between two looks to the time of a look: looks cost a thousandth of the training time."""

MOST_BYTES = 64 << 20
"""The most bytes of tensors and arrays that a state may have copied to be remembered."""

Keep = Callable[[Change], bool]
"""Whether a change stays when a state is put back."""


class Changeable(Protocol):
    """Finds what users' code has done to the parameters: see `strays.Parameters`."""

    def changed(self) -> Iterator[str]:
        """Yield the names of parameters that have other memory, or are frozen and have other values."""

    def unfrozen(self) -> Iterator[str]:
        """Yield the names of parameters that need a gradient now, and did not at first."""


class Beginning:
    """Remembers Python states and settings from the beginning of training, and when the next look at them is due."""

    def __init__(self) -> None:
        self._states: list[tuple[PythonState, Keep]] = []
        self._settings: dict[str, Any] = {}
        self._due_at = 0.0
        self.parameters: Changeable | None = None

    def remember(self, states: Sequence[tuple[PythonState, Keep]], parameters: Changeable) -> None:
        """Remember these states, the parameters and the present settings as the beginning.

        Each state comes with a function that tells which changes stay when it is put back. A state that has copied more
        than MOST_BYTES, such as the state of a data set with a list of images, is left out.
        """
        self._states = [(state, keep) for state, keep in states if state.copied_bytes <= MOST_BYTES]
        self._settings = settings()
        self.parameters = parameters

    @property
    def is_due(self) -> bool:
        """Return whether a look is worth its time."""
        return time.perf_counter() >= self._due_at

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Time the block, which is a look, and set when the next look is due."""
        began = time.perf_counter()
        yield
        ended = time.perf_counter()
        self._due_at = ended + TIMES_LONGER * (ended - began)

    def changes(self) -> list[Change]:
        """Return the changes since the beginning, without those that stay."""
        return [change for state, keep in self._states for change in state.changes() if not keep(change)]

    @contextmanager
    def with_only(self, changes: Sequence[Change]) -> Iterator[None]:
        """Put the beginning back for the block, with these changes alone; then put the present state back."""
        present = self.changes()
        self._put_back()
        _make(changes)
        try:
            yield
        finally:
            self._put_back()
            _make(present)

    def _put_back(self) -> None:
        for state, keep in self._states:
            state.restore(keep)

    def other_settings(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the name of each setting that is no longer what it was, with its value then and now."""
        if self._settings:
            yield from differences(self._settings, settings())


def _make(changes: Sequence[Change]) -> None:
    for change in changes:
        change.write(change.now)


def differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each of these settings that differs, with both values."""
    for name, value in now.items():
        if value != before[name]:
            yield name, before[name], value


def settings() -> dict[str, Any]:
    """Return the settings of the process on which other code depends, by the names that errors give them."""
    device = torch.get_default_device()
    return {
        "the current folder": os.path.realpath(os.curdir),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": str(device),
        "torch's number of threads": torch.get_num_threads(),
        "torch's grad mode": torch.is_grad_enabled(),
        "torch's inference mode": torch.is_inference_mode_enabled(),
        "torch's autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's precision of matrix products": torch.get_float32_matmul_precision(),
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "torch.backends.cudnn.enabled": torch.backends.cudnn.enabled,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "torch.backends.cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "torch's flushing of denormal numbers": not float(
            torch.full((), 1e-40, dtype=torch.float32, device="cpu") * 1.0
        ),
    }
