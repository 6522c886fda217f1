"""The job's arithmetic, from its checkpoint or else its first worker, and the workers whose arithmetic differs.

The sources of the user's code are compared too: a worker that has other sources is held back.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any

from batchgrowth.errors import ClusterError, WorkloadError

from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.user_errors import seen_at
from batchgrowth_trainer.worker.messages import Prepared

MOST_RECORDS = 32
"""The most differing workers that a run's summary lists."""
SHARDS = "shards"
"""The role of a process that computes gradients."""
STEPS = "steps"
"""The role of a server, which computes the optimizer's steps alone."""

Publish = Callable[[Mapping[str, str], str], None]
"""Gets the workers that differ now, by name, with the reason; and a line about a new one, empty if one has left."""


def _ignored(_differing: Mapping[str, str], _line: str) -> None:
    """Publish nothing."""


class Arithmetics:
    """Compares the arithmetic of every process that joins a run with the job's.

    If `required`, those that differ are refused. `known` is what `to_json` returned in an earlier run of the job.
    """

    def __init__(
        self, *, required: bool = False, publish: Publish = _ignored, known: Mapping[str, Any] | None = None
    ) -> None:
        self._required = required
        self._publish = publish
        stored = known or {}
        self._first: Prepared | None = None
        """The worker of this run whose arithmetic became the job's; None if an earlier run's did."""
        self._job = {role: Arithmetic.from_json(stored[role]) for role in (SHARDS, STEPS) if role in stored}
        self._records: list[dict[str, str]] = [dict(record) for record in stored.get("differing", ())]
        self._differing: dict[str, tuple[str, str]] = {}  # by address, "" for the trainer's own: its name, and why
        self._code: Mapping[str, str] | None = None
        self._other_code: dict[str, str] = {}  # by address: why it is held back

    def compare(self, address: str, prepared: Prepared) -> None:
        """Compare a worker that has become ready. The first worker's code becomes the job's, and so does its arithmetic
        unless an earlier run's is known.

        Raises WorkloadError if it differs from the first worker and only the code can be the reason, because both are
        processes of one machine.
        """
        # Code before arithmetic: other code makes other gradients, which would look like other arithmetic.
        if self._code is None:
            self._code = prepared.code
        if prepared.code != self._code:
            names = self._code.keys() | prepared.code.keys()
            files = sorted(name for name in names if self._code.get(name) != prepared.code.get(name))
            why = f"it has another {files[0]}" + (f" and {len(files) - 1} more files" if files[1:] else "")
            self._other_code[address] = why
            self._differing[address] = prepared.name, why
            self._publish(
                self._by_name(),
                f"worker {_named(prepared)} is held back: {why} than the workers before it. Undo the change, or end "
                "this run and --resume it, which trains on with the new code.",
            )
            return
        if SHARDS not in self._job:
            self._first = prepared
        self._check_process(prepared)
        why = self._compare(SHARDS, prepared.name, prepared.host, prepared.arithmetic)
        if why:
            self._differing[address] = prepared.name, why
            self._publish(self._by_name(), self._line(f"worker {_named(prepared)}", why))

    def _check_process(self, prepared: Prepared) -> None:
        first = self._first
        if first is None or first.host != prepared.host or not prepared.arithmetic.is_unexplained(first.arithmetic):
            return
        raise WorkloadError(
            f"the first shard comes out otherwise in another process: workers {first.name} and {prepared.name} on "
            f"{prepared.host} computed it with the same processor, torch and threads, and each of them twice with the "
            "same bits. So the model, the loss or the data depend on the process: on its number, its time, its "
            "environment, an id() or a file that has changed. Make them from the arguments and from torch, "
            f"numpy.random or random, which the trainer seeds before it imports your module{seen_at(None)}"
        )

    def compare_own(self, role: str, arithmetic: Arithmetic) -> None:
        """Compare the trainer's own process, which computes in that role. Raises ClusterError if it is refused."""
        host = socket.gethostname()
        why = self._compare(role, "trainer", host, arithmetic)
        if why:
            self._differing[""] = "trainer", why
            line = self._line(f"the trainer on {host}", why)
            self._publish(self._by_name(), line)
            if self._required:
                raise ClusterError(
                    f"{line}. Continue on a machine like the first, or set workers.sameArithmetic: Preferred."
                )

    def forget_workers(self) -> None:
        """Forget all workers, because their scheduler is gone; workers that come back are compared again."""
        # "" is the trainer's own process, which is still here.
        for address in [one for one in self._differing if one]:
            self.left(address)

    def left(self, address: str) -> None:
        """Stop reporting a worker that is gone."""
        self._other_code.pop(address, None)
        if self._differing.pop(address, None):
            self._publish(self._by_name(), "")

    def differs(self, address: str) -> bool:
        """Return whether the worker's arithmetic or code is not the job's."""
        return address in self._differing

    def has_other_code(self, address: str) -> bool:
        """Return whether the worker is held back for its code."""
        return address in self._other_code

    def may_adopt(self, address: str, prepared: Prepared) -> bool:
        """Return whether the job may go on with the code for which this worker is held back.

        It may not if the job requires its own arithmetic and the worker would have another with any code.
        """
        if address not in self._other_code:
            return False
        job = self._job[SHARDS]
        is_of_job = prepared.arithmetic.digest == job.digest or prepared.arithmetic.is_unexplained(job)
        return is_of_job or not self._required

    def adopt_code(self, address: str, prepared: Prepared) -> None:
        """Take this worker's code as the job's, because every worker that computed with the job's code is gone.

        The worker's arithmetic becomes the job's too, because the first shard of other code has another digest. The
        caller must compare the remaining workers again.
        """
        why = self._other_code[address]
        self._other_code.clear()
        self._differing = {one: differing for one, differing in self._differing.items() if not one}
        self._code = prepared.code
        self._first = prepared
        self._job[SHARDS] = prepared.arithmetic
        line = f"every worker with the job's code is gone; worker {_named(prepared)} goes on with its own: {why}"
        self._publish(self._by_name(), line)

    def refusal(self, address: str) -> str:
        """Return a line about why the worker must not compute; empty if it may."""
        if address in self._other_code:
            return f"worker {self._differing[address][0]} is held back: {self._other_code[address]}"
        if not self._required or address not in self._differing:
            return ""
        name, why = self._differing[address]
        return self._line(f"worker {name}", why)

    def begin_with(self, prepared: Prepared) -> None:
        """Take this worker's arithmetic as the job's, because nothing is trained yet and the first worker is gone."""
        self._first = prepared
        self._job[SHARDS] = prepared.arithmetic
        self._differing.clear()
        self._records.clear()
        self._publish({}, "")

    def to_json(self) -> dict[str, Any]:
        """Return the job's arithmetic by role, and the processes that differed: for checkpoints and the summary."""
        return {role: job.to_json() for role, job in self._job.items()} | {"differing": self._records}

    def _compare(self, role: str, name: str, host: str, arithmetic: Arithmetic) -> str:
        """Return how this arithmetic differs from the job's; empty if it does not."""
        job = self._job.setdefault(role, arithmetic)
        if job.digest == arithmetic.digest:
            return ""
        # A worker that comes back is listed once.
        record = {"worker": name, "host": host, **arithmetic.to_json()}
        if record not in self._records and len(self._records) < MOST_RECORDS:
            self._records.append(record)
        return arithmetic.why_not(job)

    def _line(self, who: str, why: str) -> str:
        then = "the weights may end with other last bits; workers.sameArithmetic: Required would refuse it"
        if self._required:
            then = "workers.sameArithmetic: Required refuses it"
        return f"{who} adds differently than this job: {why}; {then}"

    def _by_name(self) -> dict[str, str]:
        return dict(self._differing.values())


def _named(prepared: Prepared) -> str:
    return prepared.name if prepared.name == prepared.host else f"{prepared.name} on {prepared.host}"
