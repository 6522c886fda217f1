"""The experiments of Holt and Sievert, "Training machine learning models faster with Dask", 2021.

Each table and figure has a function that returns its `Experiment`: rows, with the published numbers beside ours, and
how to draw them. `batchgrowth paper` prints, draws and reports them.
"""
