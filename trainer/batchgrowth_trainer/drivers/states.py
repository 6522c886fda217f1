"""The members' states as their driver knows them: how far each is, and what it takes to go on from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.record.snapshot import Trained, from_arrays, to_arrays
from batchgrowth_trainer.worker import service


class States:
    """`updates` says how far each member is that has trained or been restored; `hear` takes a member's report."""

    def __init__(self, run: Run, crew: Crew, hear: Callable[[dict[str, Any]], None]) -> None:
        self._run, self._crew, self._hear = run, crew, hear
        self.updates: dict[str, int] = {}

    def can_go_on(self, members: list[str]) -> bool:
        """Give the newest checkpoint to a member, where none of them is as far, and have every report of the updates
        that led to where they are; False where who is needed for that is gone.

        So the history has no gap: whoever trains on knows all that was not heard by then, and a state that is restored
        was written down with what led to it.
        """
        best = max(self.updates.get(address, 0) for address in members)
        saved = self._run.checkpoint_after(best)
        if saved is not None:
            packed = to_arrays(saved.snapshot)
            if not self._crew.ask(service.restore_member, self._crew.run_id, packed, workers=members[:1]):
                self._restart_if_silent(members[0])
                return False
            best = self.updates[members[0]] = saved.snapshot.position.update
        self._run.reach(best)
        holder = next(address for address in members if self.updates.get(address, 0) == best)
        if self._has_told_all(holder):
            return True
        self._restart_if_silent(holder)
        return False

    def take_reports(self, address: str) -> bool:
        """Hear what that member knows and nobody has told; False where it is gone."""
        reports = self._ask(service.take_reports, address)
        self._hear_all(reports or ())
        return reports is not None

    def save(self, address: str) -> None:
        """Write that member's state down, with all reports of what led to it; nothing where it is gone."""
        kept = self._ask(service.take_snapshot, address)
        if kept is not None:
            packed, reports = kept
            self._hear_all(reports)
            self._run.save(from_arrays(packed))

    def part_with_leavers(self) -> None:
        """Count on them no longer; where nobody else has the newest state, it is written down first."""
        best = max(self.updates.values(), default=0)
        holders = [address for address, update in self.updates.items() if update == best]
        if best > self._run.saved_update and self._crew.leaving.issuperset(holders):
            self.save(holders[0])
        for address in self._crew.leaving:
            self.updates.pop(address, None)

    def trained(self) -> Trained | None:
        """The newest state; None where the member that held it is gone. Nothing, where nothing has begun."""
        if not self.updates:
            return Trained(None, {})
        best = max(self.updates, key=lambda address: self.updates[address])
        self._has_told_all(best)
        for packed, arrays in self._crew.ask(service.take_result, self._crew.run_id, workers=[best]).values():
            return Trained(from_arrays(packed), {name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
        return None

    def _has_told_all(self, address: str) -> bool:
        heard = self._run.reported >= self.updates.get(address, 0)
        return (heard and not self._run.evaluation_due(self._run.position)) or self.take_reports(address)

    def _ask(self, function: Callable[..., Any], address: str) -> Any:
        heard = self._run.reported, self._run.story.evaluated
        return self._crew.ask(function, self._crew.run_id, *heard, workers=[address]).get(address)

    def _hear_all(self, reports: service.Reports) -> None:
        for message in reports:
            self._hear(message)

    def _restart_if_silent(self, address: str) -> None:
        for silent in self._crew.silent([address]):
            self._crew.restart(silent)
