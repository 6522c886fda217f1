"""Pictures of runs: one PNG to show and one interactive HTML that opens without a network."""

from batchgrowth_trainer.plots.write import plot_runs

__all__ = ["plot_runs"]
