"""What users' code draws from `random` does not depend on what Dask does in another thread."""

import random

from batchgrowth_trainer.worker import service  # noqa: F401  (as every worker imports it)
from dask.sizeof import sizeof
from distributed import utils_comm
from distributed.comm import core


def test_the_size_of_a_message_is_estimated_without_the_global_generator() -> None:
    """It is that of a sample, drawn on the event loop while another thread may read examples."""
    random.seed(7)
    before = random.getstate()
    sizeof(list(range(100)))
    assert before == random.getstate()


def test_waits_and_choices_of_connections_have_a_generator_of_their_own() -> None:
    assert random is not utils_comm.random
    assert random is not core.random
