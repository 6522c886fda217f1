"""Train as a scikit-learn estimator does: DaskClassifier and DaskRegressor, on the plan, loop and bits of a manifest.

`estimator` has the classes; `parameters` makes a job of their parameters, `examples` a training set of what `fit` gets,
`recipe` the workload of both, and `fitting` trains it; `kept_workers` keeps local workers from one fit to the next.
"""
