"""The members' states as their driver knows them: how far each is, and what resuming from them takes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any

from batchgrowth_trainer.crew.calls import Asked
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.record.snapshot import PackedSnapshot, Trained, pack_snapshot, unpack_snapshot, unpack_trained
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Outcome, Report


class States:
    """`updates` counts each member's committed updates; `on_report` receives the reports that are fetched.

    A member that lost its peers while it evaluated is not judged: its state lacks what follows from the evaluation.
    """

    def __init__(self, run: Run, crew: Crew, on_report: Callable[[Report], None]) -> None:
        self._run, self._crew, self._on_report = run, crew, on_report
        self.updates: dict[str, int] = {}
        self._unjudged: set[str] = set()
        self._coming: Asked | None = None  # the state of a member that trains

    def catch_up(self, members: list[str]) -> bool:
        """Restore the newest checkpoint if no member is as far, and fetch every missing report; False if one is lost.

        So the history has no gap: a member that trains on keeps the reports that never arrived, and a checkpoint is
        written only with the reports that led to it.
        """
        best = max(self.updates.get(address, 0) for address in members)
        saved = self._run.checkpoint_after(best)
        if saved is not None:
            packed = pack_snapshot(saved.snapshot)
            answers = self._crew.calls.ask(service.restore_member, self._crew.run_id, packed, workers=members[:1])
            if not answers:
                self.restart_unresponsive(members[:1])
                return False
            best = saved.snapshot.position.update
            self.take({members[0]: Outcome(best, is_judged=answers[members[0]])})
        self._run.reach(best)
        holder = next(address for address in members if self.updates.get(address, 0) == best)
        if self._has_reported_all(holder):
            return True
        self.restart_unresponsive([holder])
        return False

    def take(self, outcomes: Mapping[str, Outcome]) -> None:
        """How far these members are now; one whose step failed midway has no state."""
        for address, outcome in outcomes.items():
            if not outcome.is_whole:
                self.updates.pop(address, None)
                continue
            self.updates[address] = outcome.update
            (self._unjudged.discard if outcome.is_judged else self._unjudged.add)(address)

    @property
    def is_judged(self) -> bool:
        """Whether one of the most advanced members is judged; true if there is none."""
        return not self.updates or self._best() not in self._unjudged

    def _best(self) -> str:
        return max(self.updates, key=lambda address: (self.updates[address], address not in self._unjudged))

    def take_reports(self, address: str) -> bool:
        """Fetch the missing reports of that member; False if it is gone."""
        reports = self._ask(service.take_reports, address)
        self._take(reports or ())
        return reports is not None

    def save(self, address: str) -> bool:
        """Save that member's state in a checkpoint, after the reports that led to it; False if it is gone."""
        self.expect_none()  # what comes now is newer
        kept = self._ask(service.take_snapshot, address)
        if kept is not None:
            self._save(*kept)
        return kept is not None

    def save_while_it_trains(self, address: str, *, due: bool) -> None:
        """Save the state of a member that trains as soon as it has come; it is asked for it if a checkpoint is due.

        Nothing waits for it: a member that hangs must not hold up its driver, which looks for those that do.
        """
        if self._coming is None:
            if due:
                self._coming = self._crew.calls.begin(service.take_snapshot, *self._known, worker=address)
        elif (answers := self._coming()) is not None:
            self._coming = None
            for kept in answers.values():
                self._save(*kept)

    def expect_none(self) -> None:
        """Take no state that was asked for and has not come: its member trains no longer."""
        self._coming = None

    def release(self, going: Set[str]) -> None:
        """Stop counting on these workers; if only they hold the newest state, save it first."""
        best = max(self.updates.values(), default=0)
        holders = {address for address, update in self.updates.items() if update == best}
        if going >= holders:
            self.save_newest(holders)
        for address in going:
            self.updates.pop(address, None)

    def save_newest(self, holders: Set[str]) -> None:
        """Save the newest state that one of these workers holds, unless a checkpoint is as new."""
        for address in sorted(holders & self.updates.keys(), key=self.updates.__getitem__, reverse=True):
            if self.updates[address] <= self._run.saved_update or self.save(address):
                return

    def restart_unresponsive(self, addresses: Collection[str]) -> None:
        """See Crew.restart_unresponsive; the newest state of those that answer is saved before any is restarted."""
        self._crew.restart_unresponsive(addresses, self._run.note, self.save_newest)

    def trained(self) -> Trained | None:
        """The newest state; None if the member that held it is gone, empty if nothing was trained."""
        if not self.updates:
            return Trained(None, {})
        best = self._best()
        self._has_reported_all(best)
        for packed in self._crew.calls.ask(service.take_result, self._crew.run_id, workers=[best]).values():
            return unpack_trained(packed)
        return None

    def _has_reported_all(self, address: str) -> bool:
        reported = self._run.reported >= self.updates.get(address, 0)
        return (reported and not self._run.evaluation_due(self._run.position)) or self.take_reports(address)

    def _ask(self, function: Callable[..., Any], address: str) -> Any:
        return self._crew.calls.ask(function, *self._known, workers=[address]).get(address)

    @property
    def _known(self) -> tuple[str, int, int]:
        """The run, and how far its reports are known."""
        return self._crew.run_id, self._run.reported, self._run.story.evaluated

    def _save(self, packed: PackedSnapshot, reports: Iterable[Report]) -> None:
        self._take(reports)
        self._run.save(unpack_snapshot(packed))

    def _take(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self._on_report(report)
