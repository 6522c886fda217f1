"""Which workers may compute: those that are ready, without suspects and without those whose arithmetic is refused."""

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.crew.arithmetics import Arithmetics
from batchgrowth_trainer.crew.suspects import Suspects
from batchgrowth_trainer.worker.messages import Prepared


class Admission:
    """`ready` are the workers that may compute, in the order in which they came; others are held back."""

    def __init__(self, arithmetics: Arithmetics) -> None:
        self.ready: dict[str, Prepared] = {}
        self.arithmetics = arithmetics
        self._held: dict[str, Prepared] = {}
        self._suspects = Suspects()
        arithmetics.forget_workers()

    def __contains__(self, address: str) -> bool:
        """Whether the worker is prepared, held back or not."""
        return address in self.ready or address in self._held

    def add(self, address: str, prepared: Prepared) -> None:
        """Take a worker that is prepared."""
        self.arithmetics.compare(address, prepared)
        held = self.refusal(address) or self._suspects.is_suspect(prepared.name)
        (self._held if held else self.ready)[address] = prepared

    def remove(self, address: str) -> Prepared | None:
        """Forget a worker that is gone, or is about to be; returns it if it was ready."""
        self._held.pop(address, None)
        self.arithmetics.left(address)
        return self.ready.pop(address, None)

    def accuse(self, worker: str, fault: WorkerFault, *, alone: bool, was_ready: bool) -> None:
        """See Suspects.accuse."""
        self._suspects.accuse(worker, fault, alone=alone, last=not (was_ready or self.ready))

    def settle(self, update: int) -> None:
        """Admit those that were held back, if that update is past their fault or there are no others.

        Before the first update, a worker that was refused takes the place of the first one, which is gone.
        """
        self._suspects.settle(update)
        refused = [address for address in self._held if self.refusal(address)]
        if refused and not update and not self.ready:
            self.arithmetics.begin_with(self._held[refused[0]])
            for address, prepared in self._held.items():
                self.arithmetics.compare(address, prepared)
        for address, prepared in list(self._held.items()):
            held = self._suspects.is_suspect(prepared.name) and self.ready
            if not held and not self.refusal(address):
                self.ready[address] = self._held.pop(address)

    def refusal(self, address: str) -> str:
        """Why the worker's arithmetic is refused; empty if it is not."""
        return self.arithmetics.refusal(address)
