"""Plots of runs: a PNG, and an interactive HTML page that needs no network."""

from batchgrowth_trainer.plots.write import plot_runs

__all__ = ["plot_runs"]
