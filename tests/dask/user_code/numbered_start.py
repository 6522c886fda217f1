"""`python -m numbered_start START SCHEDULER FOLDER`: a trainer as in a pod, with the number of its start given."""

import sys
from pathlib import Path

from batchgrowth.errors import BatchGrowthError
from batchgrowth.manifest.reading import load_stored
from batchgrowth_trainer.drivers.scaling import shards_of
from batchgrowth_trainer.pool.takeover import Fence
from batchgrowth_trainer.sinks.report import Reporter, to_file
from batchgrowth_trainer.training import Options, train

if __name__ == "__main__":
    start, scheduler, folder = sys.argv[1:]
    options = Options(
        output_dir=Path(folder),
        scheduler=scheduler,
        resume=True,
        desired_workers=shards_of,
        patient=True,
        fence=Fence(int(start)),
    )
    deliver, _ = to_file(Path(folder).parent / f"progress-{start}.json")
    try:
        train(load_stored(Path("job.json")), options, [Reporter(deliver, lambda: int(start))])
    except BatchGrowthError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(error.exit_code)
