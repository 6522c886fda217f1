"""The digits net on workers of which one sleeps now and then, until the driver has committed further updates.

The test writes a byte to `commits` for each committed update, and creates `over` after the last. A sleeper that is not
woken by that leaves a file `in-vain`.
"""

import fcntl
import os
import time
from pathlib import Path

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits

EVERY_SHARDS = 8
FURTHER_UPDATES = 3


def workload(folder: str, sleepers: str = "1", wakes: str = "True", longest: str = "60") -> Workload:
    """One in which that number of processes sleep, one after the other: the next once the one before it has died.

    With "all", each process sleeps, until another does or there are further updates.
    """
    net = digits.workload(hidden="8")
    sleeper = _Sleeper(Path(folder), None if sleepers == "all" else int(sleepers), float(longest), wakes == "True")
    net.model.register_forward_pre_hook(lambda model, _: sleeper.count() if model.training else None)
    return net


class _Sleeper:
    def __init__(self, folder: Path, sleepers: int | None, longest: float, wakes: bool) -> None:
        self.folder, self.sleepers, self.longest, self.wakes = folder, sleepers, longest, wakes
        self.calls = 0
        self.lock: int | None = None

    def count(self) -> None:
        """Sleep within every eighth shard, if this process is the one that does; less often if all do."""
        self.calls += 1
        every = EVERY_SHARDS * (3 if self.sleepers is None else 1)
        if self.calls % every == 0 and not (self.folder / "over").exists() and self._is_chosen():
            self._sleep()

    def _sleep(self) -> None:
        began, ends = self._commits(), time.monotonic() + self.longest
        with (self.folder / "sleeps").open("a") as file:
            file.write(f"{os.getpid()}\n")
        sleeps = self._sleeps()
        number = max(index for index, pid in enumerate(sleeps, 1) if pid == str(os.getpid()))
        while not self._is_woken(began, number):
            time.sleep(0.005)
            if time.monotonic() > ends:
                (self.folder / "in-vain").touch()
                return

    def _is_woken(self, commits: int, sleeps: int) -> bool:
        """Whether something has happened since there were that many commits and sleeps."""
        if self.sleepers is None and any(pid != str(os.getpid()) for pid in self._sleeps()[sleeps:]):
            return True
        return self.wakes and (self._commits() >= commits + FURTHER_UPDATES or (self.folder / "over").exists())

    def _sleeps(self) -> list[str]:
        return (self.folder / "sleeps").read_text().split()

    def _commits(self) -> int:
        commits = self.folder / "commits"
        return commits.stat().st_size if commits.exists() else 0

    def _is_chosen(self) -> bool:
        """Whether this process holds the lock, which the kernel releases when it dies."""
        if self.lock is not None or self.sleepers is None:
            return True
        lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        if os.fstat(lock).st_size == self.sleepers:
            os.close(lock)
            return False
        os.lseek(lock, 0, os.SEEK_END)
        os.write(lock, b".")
        self.lock = lock
        return True
