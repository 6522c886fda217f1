"""A Dask cluster on this machine: processes on the loopback interface, forked from one that has torch loaded.

It takes next to nothing from the user's settings of Dask and Python, which would act on runs of one user and not of
another; docs/shared-machines.md lists them. Only its user can open its temporary folder. The owner locks a file in it,
and the kernel releases the lock when the owner is gone, however it ended, so a later run can remove the folder.
worker/fork_server_preload.py runs in the process that forks.
"""

import asyncio
import fcntl
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any

import dask
import psutil
from batchgrowth.contract.environment import DASK, HASH_SEED, worker_environment
from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.errors import ClusterError
from batchgrowth.spec import JobSpec
from distributed import LocalCluster, Nanny
from distributed.core import Status
from distributed.security import Security

from batchgrowth_trainer.pool.starts import EndedStart, check_starts
from batchgrowth_trainer.worker.addresses import bracketed, loopback
from batchgrowth_trainer.worker.exits import signals_wait
from batchgrowth_trainer.worker.greeted import own_certificate
from batchgrowth_trainer.worker.local_preload import place_of_fatal_error

# --- What workers take from this user's settings of Dask and Python ---

OF_PYTHON = "PYTHON"
OF_DASK = "DASK_"
KEPT_VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONUNBUFFERED",
)  # fmt: skip
"""The variables of Python that workers inherit: where modules are, and how text is encoded."""
_FLAGS = ("-I", "-E", "-s", "-S", "-B")  # of Python's command line, for the same reasons
_OWN_FLAGS = ("-P",)  # a file in the current folder must not stand in for a module of Python or torch


@contextmanager
def dask_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Use Dask's defaults and these settings in the block, without the user's files, variables and `dask.config.set`.

    They apply to the whole process.
    """
    before = dict(dask.config.config)
    chosen: dict[str, Any] = {}
    dask.config.refresh(config=chosen, paths=[], env={})
    dask.config.set(settings, config=chosen)
    _replace(dask.config.config, chosen)
    try:
        yield
    finally:
        _replace(dask.config.config, before)


def _replace(config: dict[str, Any], by: Mapping[str, Any]) -> None:
    """Replace the content of `config`; no other thread misses a setting meanwhile."""
    config.update(by)
    for name in config.keys() - by.keys():
        del config[name]


def is_left_out(variable: str) -> bool:
    """Return whether workers must not inherit the environment variable of this name."""
    return variable.startswith(OF_DASK) or (variable.startswith(OF_PYTHON) and variable not in KEPT_VARIABLES)


def worker_flags(flags: list[str]) -> list[str]:
    """Return the flags of workers' interpreters, given the flags of this process."""
    return [flag for flag in flags if flag in _FLAGS] + list(_OWN_FLAGS)


# --- The folder of a cluster's files, and the removal of those that dead runs left ---

PREFIX = "batchgrowth-"
OWNER_FILE = ".owner"

log = logging.getLogger(__name__)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the system's folder for temporary files, and remove it at the end of the block.

    First removes the folders of this user's dead runs.
    """
    root = Path(tempfile.gettempdir())
    remove_abandoned(root)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=root, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Locked before it has its name, so that another run never finds it unlocked.
        locked = os.open(folder / f"{OWNER_FILE}-new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with suppress(OSError):  # a file server without locks: nobody takes the folder for abandoned
                fcntl.flock(locked, fcntl.LOCK_EX)
                os.rename(folder / f"{OWNER_FILE}-new", folder / OWNER_FILE)
            yield folder
        finally:
            os.close(locked)


def remove_abandoned(root: Path) -> None:
    """Remove the folders below `root` of this user's runs whose owner is gone."""
    for folder in root.glob(f"{PREFIX}*"):
        # What cannot be opened belongs to another user, or is gone meanwhile.
        with suppress(OSError):
            if _is_abandoned(folder):
                log.info("%s is removed: its run is gone", folder)
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether the folder is this user's and its owner is gone. Raises OSError if it is no folder of a run."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            return False
        # In the folder that was looked at, even if another one has its name by now.
        owner = os.open(OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(owner)
        return True
    finally:
        os.close(opened)


# --- The server that forks workers ---

LONGEST_FOLDER_BYTES = 70
"""The longest path of the folder for temporary files; sockets are two levels below it."""


def start_fork_server(preload: str, environment: Mapping[str, str]) -> None:
    """Start the process that forks workers, with this module loaded, unless this program has started one already.

    `environment` is added to the variables that workers inherit. The module calls `exits.outlive_signals`. Raises
    ClusterError if the process cannot start, or could not talk to those that it forks.
    """
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise ClusterError(
            f"no semaphore can be made, which processes of one run share ({error}); they lie in /dev/shm: let that be "
            "a folder that you can write to, with free space"
        ) from error
    forkserver.set_forkserver_preload([preload])
    folder = tempfile.gettempdir()
    try:
        with _interpreter(environment):
            with signals_wait():  # the tracker takes SIGINT and SIGTERM by itself, and would end by SIGHUP
                resource_tracker.ensure_running()
            with signals_wait():
                forkserver.ensure_running()
    except OSError as error:  # most of all: the path of a socket may have 108 bytes
        raise ClusterError(
            f"the process that starts workers cannot be started ({error}); it has a socket below {folder}, whose path "
            f"has {len(os.fsencode(folder))} bytes: set TMPDIR to a folder of your own with a path of at most "
            f"{LONGEST_FOLDER_BYTES} bytes and free space"
        ) from error


@contextmanager
def _interpreter(environment: Mapping[str, str]) -> Iterator[None]:
    """Let Python start other processes with the variables and flags of workers; restore this process's at the end."""
    before = dict(os.environ)
    flags_of_this_process = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    try:
        for name in before:
            if is_left_out(name):
                del os.environ[name]
        os.environ.update(environment)
        util._args_from_interpreter_flags = lambda: worker_flags(flags_of_this_process())  # type: ignore[attr-defined]
        yield
    finally:
        util._args_from_interpreter_flags = flags_of_this_process  # type: ignore[attr-defined]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


# --- The cluster, and its scaling ---

PRELOADED = "batchgrowth_trainer.worker.fork_server_preload"
"""The module that the server that forks workers imports."""
_PRELOAD = "batchgrowth_trainer.worker.local_preload"
_LOGS = "batchgrowth_trainer.worker.logs"
"""Modules that Dask imports in each worker."""
_OF_PYTHON = 1_000  # objects that Python itself may have frozen: version 3.12 starts with some 400
_CLOSE_SECONDS = 20.0
_ABANDON_SECONDS = 5.0
_AT_ONCE = 8  # workers that start together; more would keep their one event loop from serving connections
_GROW_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_IDLE_SECONDS = 2.0  # after which a nanny without a process is not merely restarting it
_IDLE_SECONDS_EACH = 1.0  # for each nanny that has none


@contextmanager
def existing_left_alone() -> Iterator[None]:
    """Let garbage collections in the block, or in the decorated function, ignore the objects that exist at its
    beginning.

    A full collection looks at every object, of which a process with torch and Dask has half a million, for up to 0.2 s.
    Garbage among these objects is freed after the block. Does nothing if the caller has frozen objects, which stay
    frozen.
    """
    if gc.get_freeze_count() > _OF_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class WorkerProcesses(LocalCluster):  # type: ignore[misc]  # Dask has no types
    """A LocalCluster that keeps in `ended`, in their order, why processes of workers ended or did not begin.

    Once it `is_over`, no process begins.
    """

    def __init__(self, **options: Any) -> None:
        # Before Dask's own, since `_nanny_of` reads them.
        self.ended: list[EndedStart] = []
        self.is_over = False
        super().__init__(worker_class=_nanny_of(self), **options)

    def end(self) -> None:
        """Close the cluster, and end the processes of workers that Dask leaves because they have not started yet."""
        # First: a nanny that waits for its turn must not start a process while Dask closes the others.
        self.is_over = True
        with suppress(TimeoutError):
            self.close(timeout=_CLOSE_SECONDS)
        # Each process ends at once, or as soon as the server has forked it, which may take long on a busy machine:
        # multiprocessing waits for it at this process's exit, for as long as it lives.
        for nanny in list(self._created):
            with suppress(AttributeError):  # it has no process any more, or a later Dask names the pipe differently
                nanny.process.process._keep_child_alive.close()  # Dask's worker exits when this end of a pipe is closed
            with suppress(OSError, TypeError):
                os.kill(nanny.pid, signal.SIGKILL)


def _nanny_of(cluster: WorkerProcesses) -> type[Nanny]:
    ended = cluster.ended

    class TellingNanny(Nanny):  # type: ignore[misc]
        async def instantiate(self) -> Status:
            if cluster.is_over:
                return Status.closed
            try:
                return await super().instantiate()
            except Exception as error:
                first = _first_of(error)
                cause = f"the process of worker {self.name} could not be started: {type(first).__name__}: {first}"
                ended.append(EndedStart(cause, began=False))
                raise

        def _on_worker_exit_sync(self, code: int) -> None:
            if self.status not in _ENDING:
                where = place_of_fatal_error(self._original_local_dir, self.name)
                cause = f"the process of worker {self.name} {_how_it_ended(code)}{where and f' {where}'}"
                ended.append(EndedStart(cause, self.worker_address or "", killed=-code == signal.SIGKILL))
            super()._on_worker_exit_sync(code)

    return TellingNanny


def _first_of(error: BaseException) -> BaseException:
    """Return the first error of the chain; Dask raises others while it handles that one."""
    while error.__context__ is not None:
        error = error.__context__
    return error


_ENDING = {Status.closing, Status.closed, Status.closing_gracefully}


def _how_it_ended(code: int) -> str:
    """Return the exit code of a process, or the signal that killed it, as a clause."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    memory = ", as the system does if memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code}{name}{memory}"


class LocalScaler:
    """Scales a LocalCluster, and replaces workers that die while they start, which Dask does not."""

    def __init__(self, cluster: WorkerProcesses) -> None:
        self._cluster = cluster
        self._seconds: dict[int, float] = {}  # of processor time, by process ID
        self._forgotten = len(cluster.ended)  # ended processes before the last worker became ready
        self._looked_at = 0.0
        self._worked_at = time.monotonic()
        self._target = 0
        self._grows = False
        self._idle_since: dict[object, float] = {}  # workers without a process

    def scale(self, count: int, keep: Collection[str]) -> None:
        """Request `count` workers, and close spare workers; Dask's own choice could close a worker that trains."""
        names = list(self._cluster.worker_spec)
        spare = [name for name in reversed(names) if str(name) not in keep]
        self._target = count
        if count >= len(names):
            self._cluster.loop.add_callback(self._grow)
        else:
            self._cluster.loop.add_callback(self._cluster.scale_down, spare[: len(names) - count])

    async def _grow(self) -> None:
        """Start workers, a few at a time, until there are as many as requested."""
        if self._grows:
            return
        self._grows = True
        try:
            while self._cluster.status == Status.running and len(self._cluster.worker_spec) < self._target:
                present = len(self._cluster.worker_spec)
                starting = present - len(self._cluster.scheduler.workers)
                more = min(self._target - present, _AT_ONCE - starting)
                if more > 0:
                    self._cluster.scale(present + more)
                await asyncio.sleep(_GROW_SECONDS)
        finally:
            self._grows = False

    def check_starts(self, known: Collection[str]) -> None:
        """Raise ClusterError if processes keep ending before their worker is ready; those of `known` do not count."""
        ended = self._cluster.ended[self._forgotten :]
        check_starts(start for start in ended if not start.address or start.address not in known)

    def forget_starts(self) -> None:
        """Note that a worker is ready, so that earlier failures no longer count."""
        self._forgotten = len(self._cluster.ended)

    def worked_at(self) -> float:
        """Return when a worker's process, or the server that forks them, was last seen to have used the processor."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return self._worked_at
        self._looked_at = now
        # A process that imports torch or loads data answers nobody, but it uses the processor.
        server = vars(forkserver)["_forkserver"]._forkserver_pid
        for pid in [server, *(nanny.pid for nanny in list(self._cluster._created))]:
            if pid is None:
                continue
            with suppress(psutil.Error):  # it may end meanwhile
                spent = psutil.Process(pid).cpu_times()
                seconds = spent.user + spent.system
                if seconds > self._seconds.get(pid, 0.0):
                    self._worked_at = now
                self._seconds[pid] = seconds
        return self._worked_at

    def repair(self) -> None:
        """Replace workers that failed to start.

        A nanny does not restart a worker that died before it had registered.
        """
        self._cluster.loop.add_callback(self._repair)

    async def _repair(self) -> None:
        workers = self._cluster.workers
        now = time.monotonic()
        idle = {name for name, nanny in workers.items() if not nanny.is_alive()}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        # Workers that only wait for their turn to start are given time.
        patience = max(_IDLE_SECONDS, _IDLE_SECONDS_EACH * len(idle))
        given_up = [workers.pop(name) for name, since in self._idle_since.items() if now - since > patience]
        if given_up:
            log.info("%d workers did not start and are replaced", len(given_up))
            # Dask then starts a worker for each name that its `worker_spec` has and its `workers` lack.
            self._cluster.scale(len(self._cluster.worker_spec))
        for nanny in given_up:
            with suppress(TimeoutError):  # it may wait forever for its worker to start
                await asyncio.wait_for(nanny.close(timeout=2), _ABANDON_SECONDS)


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep workers from importing the program's file, which without a `__main__` guard would train again in each
    worker.

    multiprocessing ignores a main module of this name; workers do not need it, because all that they use is sent to
    them.
    """
    main = sys.modules["__main__"]
    before = main.__spec__
    main.__spec__ = ModuleSpec("__main__", None)
    try:
        yield
    finally:
        main.__spec__ = before


@contextmanager
def _start_method_known() -> Iterator[None]:
    """Keep workers from getting joblib's start method, which only a process that joblib has started knows.

    multiprocessing gives workers the method of this process as their own.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    if before in (None, "fork", "spawn", "forkserver"):
        yield
        return
    multiprocessing.set_start_method(None, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


@contextmanager
def local_cluster(
    spec: JobSpec, logs: Logs = DEFAULT_LOGS, security: Security | None = None
) -> Iterator[WorkerProcesses]:
    """Yield a cluster without workers yet, ready to `scale`; remove its processes and files at the end.

    If `logs` is detailed, every worker process logs too, else it is silent but for critical messages. Only processes
    with the certificate in `security` can connect; by default the cluster makes its own. The cluster uses none of the
    user's settings of Dask.
    """
    with scratch_folder() as scratch, own_settings():
        cluster = new_cluster(scratch, spec.workers.threads, logs, security)
        try:
            yield cluster
        finally:
            cluster.end()


@contextmanager
def own_settings() -> Iterator[None]:
    """Use the settings of our clusters in the block, in which a cluster starts workers and they train."""
    settings: dict[str, Any] = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.worker.memory.terminate": False,
        "distributed.worker.daemon": False,  # a worker may have loaders; it ends with its nanny all the same
        "distributed.admin.log-length": 100,
        # A process that ends closes its connections at once; one that is silent for long is slow.
        "distributed.comm.timeouts.tcp": "300s",
        "distributed.admin.large-graph-warning-threshold": "1GB",  # a function of a notebook may hold data
        # Dask always opens HTTP ports, without a password: they must have nothing to show.
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        # Dask would write these into the environment of this process, and let the user's own have precedence.
        "distributed.nanny.pre-spawn-environ": {},
        **DASK,
    }
    with dask_settings(settings), _main_left_alone(), _start_method_known(), _hash_seed_left_alone():
        yield


def new_cluster(scratch: Path, threads: int, logs: Logs, security: Security | None = None) -> WorkerProcesses:
    """Return a cluster as `local_cluster` has it, with its files in `scratch`; its caller must `end` it.

    The caller uses it inside `own_settings`.
    """
    # The pool notes lost peers in a line of its own; torch would print a stack trace.
    environment = {
        **worker_environment(threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONHASHSEED": HASH_SEED,
    }
    security = security or own_certificate()
    start_fork_server(PRELOADED, environment)
    host = loopback()
    return WorkerProcesses(
        n_workers=0,
        threads_per_worker=1,
        processes=True,
        host=bracketed(host),
        security=security,
        protocol=getattr(security, "protocol", None),
        # Any free port: two runs must not clash, and Dask needs one. A pair, since Dask takes no IPv6 address as text.
        dashboard_address=[(host, 0)],
        worker_dashboard_address=None,
        scheduler_kwargs={"dashboard": False},
        memory_limit=0,
        local_directory=str(scratch),
        silence_logs=logging.CRITICAL,  # until the preloaded module opens the log
        preload=[_PRELOAD, *([_LOGS] if logs.detailed else [])],
        env=environment | logs.environment,
    )


@contextmanager
def _hash_seed_left_alone() -> Iterator[None]:
    """Restore the variable, which Dask sets in this process when it starts a worker."""
    before = os.environ.get("PYTHONHASHSEED")
    try:
        yield
    finally:
        os.environ.pop("PYTHONHASHSEED", None)
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before
