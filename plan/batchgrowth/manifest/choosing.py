"""Choosing another type by an override or a keyword replaces the block of the type before, and says so.

A manifest with `optimizer: {type: SGD, sgd: {…}}` and `--set optimizer.type=Adam` mean Adam with its defaults: without
this, the block `sgd` would be refused.
"""

from collections.abc import Callable, Collection
from typing import Any

from batchgrowth.choices import CHOICES, GROWTH
from batchgrowth.manifest.documents import KeyPath, dotted
from batchgrowth.registry import Registry

Say = Callable[[str], None]
"""Receives a line for the user."""


def nobody(line: str) -> None:
    """Drop a line that nobody asked for."""


def replace_blocks(tree: Any, chosen_at: KeyPath, typed: Collection[KeyPath], say: Say) -> None:
    """Remove the blocks that do not go with the choice at `chosen_at`, if that path is a choice.

    `typed` are the paths that were given together with the choice: contradictions among them are the user's, and stay.
    """
    registry = _REGISTRIES.get(chosen_at)
    if registry is None:
        return
    *parents, chooser = chosen_at
    block: Any = tree
    for part in parents:
        block = block[part]
    chosen = block[chooser]
    if not isinstance(chosen, str) or chosen not in registry:
        return  # the message about the name comes later
    for name in _others(registry, chosen):
        path = (*parents, name)
        if any(given[: len(path)] == path for given in typed):
            continue
        if block.pop(name, None):
            left_out = dotted(path).removeprefix("spec.")
            say(f"note: {left_out} of the manifest is left out: {registry.field_path} is now {chosen}")


def _others(registry: Registry[Any], chosen: str) -> list[str]:
    """Return the blocks that only other entries have."""
    own = registry[chosen].block_name
    names = [entry.block_name for entry in registry.values() if entry.block is not None and entry.block_name != own]
    if registry is GROWTH and not registry[chosen].quantity:
        names.append("looks")
    return names


_REGISTRIES: dict[KeyPath, Registry[Any]] = {("spec", *each.field_path.split(".")): each for each in CHOICES}
"""The choices by the path of the field that chooses."""


def choices_in(given: Any) -> list[KeyPath]:
    """Return the paths of the choices that plain data makes, and of nothing else."""
    return [path for path in _REGISTRIES if _has(given, path)]


def _has(tree: Any, path: KeyPath) -> bool:
    for part in path:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def leaves(given: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Return the path of every value in maps within maps."""
    if not isinstance(given, dict):
        return [path]
    return [leaf for name, each in given.items() for leaf in leaves(each, (*path, name))]
