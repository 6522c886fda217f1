"""Preloaded by the worker of a pod (`dask worker … --preload`) before it registers.

The SIGTERM handler comes first: loading torch takes seconds, and the first process of a container ignores every signal
without a handler.
"""

import gc
import os

from batchgrowth_trainer.worker.exits import exit_when_asked

exit_when_asked()

from batchgrowth.contract.logs import Logs  # noqa: E402
from distributed import Worker  # noqa: E402
from distributed import worker as dask_worker  # noqa: E402

from batchgrowth_trainer.worker import certificates  # noqa: E402
from batchgrowth_trainer.worker.addresses import interface_towards, until_it_listens  # noqa: E402
from batchgrowth_trainer.worker.logs import set_up_logs  # noqa: E402
from batchgrowth_trainer.worker.service import TERMINATION  # noqa: E402

set_up_logs(Logs.of(os.environ))
dask_worker.get_ip = interface_towards  # Dask's own finds only IPv4 addresses if the scheduler is given by name
gc.freeze()  # as in worker/fork_server_preload.py


async def dask_setup(worker: Worker) -> None:
    """Prepare the worker, which Dask has not registered yet."""
    TERMINATION.install(worker)
    await certificates.dask_setup(worker)
    await until_it_listens(worker.scheduler.address)


async def dask_teardown(worker: Worker) -> None:
    """Abandon the members and end the process soon, because Dask closes the worker."""
    await certificates.dask_teardown(worker)
    TERMINATION.close()
