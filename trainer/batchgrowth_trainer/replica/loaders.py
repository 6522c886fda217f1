"""The loaders: spec.workers.loaders processes that read examples ahead while this process computes.

The plan determines what is read next: this member's shards, update after update, also after an evaluation. If the
number of members or the batch changes, what was read ahead is dropped. Every shard is read with its own seed, so the
processes change only the time.

The loaders are forked before this process has peers, and release its sockets at once, so that peers notice when this
process ends. A data set in memory is not copied.
"""

import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch
from batchgrowth.errors import BatchGrowthError

from batchgrowth_trainer.replica.data import Batch, Following, Reader, Request, is_indexed, read
from batchgrowth_trainer.user_errors import FAULTS, ReadFault, workload_error
from batchgrowth_trainer.workload import Workload

SHARED_MEMORY = "/dev/shm"  # noqa: S108  (not a temporary file)
LEAST_SHARED_BYTES = 128 << 20
_UNMAPPED = "unable to "
"""Beginning of torch's errors about shared memory: unable to open, allocate, map or resize it."""
_LOG = logging.getLogger(__name__)
_CONTEXT = multiprocessing.get_context("fork")  # a workload need not be picklable
_END_SECONDS = 2.0  # for the end of a process that may still read


def reader_of(workload: Workload, processes: int, ahead: int) -> Reader:
    """Return the reader of the examples: Loaders with so many processes, each `ahead` shards ahead, if reading may
    take time and shared memory has room; else a Reader in this process.
    """
    if processes and not is_indexed(workload, workload.train) and _has_room():
        return Loaders(workload, processes, ahead)
    return Reader(workload)


class Loaders(Reader):
    """Reads the examples of a workload in `processes` other processes."""

    def __init__(self, workload: Workload, processes: int, ahead: int) -> None:
        super().__init__(workload)
        self.processes = processes
        self._most = processes * ahead
        self._lanes: defaultdict[str | None, _Lane] = defaultdict(_Lane)
        # Forked here, when the process has no peers yet: a loader must inherit as few connections as possible.
        self._loaders = [_Loader(workload) for _ in range(processes)]
        self._turns = cycle(self._loaders)

    def read(self, request: Request, following: Following) -> Batch:
        """Return the inputs and targets of a request; loaders read the `following` requests ahead.

        Raises DataError, WorkloadError, and a ReadFault if a process that reads has died.
        """
        lane = self._lanes[request.test]
        if not lane.has(request):
            lane.restart(following())
        try:
            # Before waiting for the answer, so that the processes have something to read meanwhile.
            for coming in islice(lane.coming, self._most - len(lane.waiting)):
                lane.waiting.append((coming, next(self._turns).ask(coming)))
            return lane.waiting.popleft()[1].result()
        except (EOFError, OSError) as error:
            raise _dead_loader() from error

    def read_at_once(self, request: Request) -> tuple[list[Batch], list[str]]:
        """Let all processes read the same request at once; return their batches, and the open files whose position
        these reads have moved in this process.

        Raises what `read` raises.
        """
        try:
            with _shared_positions([loader.number for loader in self._loaders]) as moved:
                answers = [loader.ask(request) for loader in self._loaders]
                batches = [answer.result() for answer in answers]
        except (EOFError, OSError) as error:
            raise _dead_loader() from error
        return batches, moved

    def read_aside(self, request: Request) -> Batch:
        """Return the inputs and targets of a request that is no part of the training; what is read ahead stays.

        Raises what `read` does.
        """
        try:
            return next(self._turns).ask(request).result()
        except (EOFError, OSError) as error:
            raise _dead_loader() from error

    def close(self) -> None:
        """End the processes."""
        # All are released before one is waited for, so that they end at the same time.
        for loader in self._loaders:
            loader.release()
        for loader in self._loaders:
            loader.end()


def _dead_loader() -> ReadFault:
    return ReadFault(
        "a process that reads examples has died, perhaps because memory ran out; give the workers more of it, or set "
        "fewer workers.loaders",
        "a dead loader",
    )


@contextmanager
def _shared_positions(others: Sequence[int | None]) -> Iterator[list[str]]:
    """Yield a list, to which the end of the block adds the files whose position the other processes have moved.

    A file that was open when a process was forked has one position in both, so that reads by several processes mix.
    Each position is moved by 1 for the block, since reading the same examples could otherwise leave it where it was.
    """
    moved: list[str] = []
    files = _files_in_common(others)
    begun: dict[int, int] = {}
    for number in files:
        with suppress(OSError):
            begun[number] = os.lseek(number, 0, os.SEEK_CUR)
            os.lseek(number, begun[number] + 1, os.SEEK_SET)
    try:
        yield moved
    finally:
        for number, position in begun.items():
            with suppress(OSError):  # closed meanwhile, by another thread
                if os.lseek(number, 0, os.SEEK_CUR) != position + 1:
                    moved.append(files[number])
                os.lseek(number, position, os.SEEK_SET)


def _files_in_common(others: Sequence[int | None]) -> dict[int, str]:
    """Return the paths, by descriptor, of regular files that this process and one of the others have open to read."""
    files: dict[int, str] = {}
    for folder in Path("/proc/self/fd").glob("*"):
        number = int(folder.name)
        try:
            path = folder.readlink()
            reads = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            is_file = stat.S_ISREG(os.fstat(number).st_mode) and path.parts[1:2] not in (("proc",), ("sys",))
            if reads and is_file and any(Path(f"/proc/{other}/fd/{number}").readlink() == path for other in others):
                files[number] = str(path)
        except OSError:
            continue  # closed meanwhile, or not open there
    return files


class _Lane:
    """The requests for one data set: the ones under way, in order, and the ones to come."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Request, _Answer]] = deque()
        self.coming: Iterator[Request] = iter(())

    def has(self, request: Request) -> bool:
        """Return whether the request is the first of the requests under way.

        Compares the indices too: a growth of the batch keeps the seed of a shard, but not its examples.
        """
        if not self.waiting:
            return False
        following = self.waiting[0][0]
        return following.seed == request.seed and torch.equal(following.indices, request.indices)

    def restart(self, coming: Iterator[Request]) -> None:
        """Drop the requests under way. The loaders still answer them, and `receive_until` discards these answers."""
        self.waiting.clear()
        self.coming = coming


class _Answer:
    """A loader's future answer to a request; answers come in the order of the requests."""

    def __init__(self, loader: "_Loader") -> None:
        self._loader = loader
        self.batch: Batch | Exception | None = None

    def result(self) -> Batch:
        """Return the batch, once it is there.

        Raises what reading raised, and EOFError or OSError if the loader has died.
        """
        self._loader.receive_until(self)
        if isinstance(self.batch, Exception):
            raise self.batch
        assert self.batch is not None
        return self.batch


class _Loader:
    """One process that reads, at the other end of a pipe."""

    def __init__(self, workload: Workload) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(workload, theirs), daemon=True)
        self._process.start()
        theirs.close()
        # Runs before Python sends its children SIGTERM at exit and joins them: a loader ends only when the pipe closes.
        Finalize(self, self._pipe.close, exitpriority=0)
        self._asked: deque[_Answer] = deque()

    @property
    def number(self) -> int | None:
        """Return the id of the process."""
        return self._process.pid

    def ask(self, request: Request) -> _Answer:
        """Request a batch. Raises OSError if the process has died."""
        self._pipe.send((request.test, request.indices.numpy(), request.seed))
        self._asked.append(_Answer(self))
        return self._asked[-1]

    def receive_until(self, answer: _Answer) -> None:
        """Receive answers until this answer has arrived."""
        while answer in self._asked:
            self._asked.popleft().batch = self._pipe.recv()

    def release(self) -> None:
        """Make no further requests; the process ends after the batch that it is reading."""
        self._pipe.close()

    def end(self) -> None:
        """Wait for the process to end, and kill it if that takes long."""
        self._process.join(_END_SECONDS)
        self._process.kill()
        self._process.join()


def _has_room() -> bool:
    """Return whether shared memory has LEAST_SHARED_BYTES; with a container's 64 MiB, loaders die of SIGBUS."""
    total = shutil.disk_usage(SHARED_MEMORY).total
    if total < LEAST_SHARED_BYTES:
        _LOG.warning(
            "workers.loaders is ignored: %s has %d MiB and loaders need %d; mount an emptyDir of medium Memory there",
            SHARED_MEMORY, total >> 20, LEAST_SHARED_BYTES >> 20,
        )  # fmt: skip
    return total >= LEAST_SHARED_BYTES


def _serve(workload: Workload, pipe: Connection) -> None:
    """Answer requests until the worker closes the pipe or ends."""
    # Signals to all processes are for the one that trains, which still needs examples to finish its update.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    torch.set_num_threads(1)
    _release_sockets(pipe)  # or peers would not notice the worker's death: a connection closes when nobody holds it
    requests: SimpleQueue[Request | None] = SimpleQueue()
    Thread(target=_receive, args=(pipe, requests), daemon=True).start()
    while (request := requests.get()) is not None:
        try:
            batch: Batch | Exception = read(workload, request)
        except BatchGrowthError as error:
            batch = error
        except FAULTS as error:
            batch = workload_error("reading examples", error)
        try:
            _send(pipe, batch)
        except OSError:
            return


def _send(pipe: Connection, batch: Batch | Exception) -> None:
    """Answer with a batch, or with the error if it cannot be pickled. Raises OSError if the worker has closed the pipe.

    The error is a ReadFault if torch could not map shared memory.
    """
    try:
        pipe.send(batch)
    except OSError:
        raise
    except FAULTS as error:  # it was raised by pickling, which ends before the first byte is sent
        fault = workload_error("sending a batch from a process of workers.loaders", error)
        if isinstance(error, RuntimeError) and str(error).startswith(_UNMAPPED):  # it may fit later
            pipe.send(ReadFault(str(fault), "a batch without shared memory"))
        else:
            pipe.send(fault)


def _receive(pipe: Connection, requests: "SimpleQueue[Request | None]") -> None:
    """Take requests from the pipe while batches are read and sent, so that the worker never waits to send a request."""
    try:
        while True:
            test, indices, seed = pipe.recv()
            requests.put(Request(test, torch.from_numpy(indices), seed))
    except (EOFError, OSError):
        requests.put(None)
        time.sleep(_END_SECONDS)
        os._exit(1)  # the read under way takes too long


def _release_sockets(own: Connection) -> None:
    """Replace each inherited socket by /dev/null; its number stays taken, so no other file is closed by mistake."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:
            continue  # the descriptor of the listing itself
        if is_socket and number != own.fileno():
            os.dup2(nothing, number)
    os.close(nothing)
