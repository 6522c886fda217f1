"""Train as a scikit-learn estimator does: DaskClassifier and DaskRegressor, on the plan, loop and bits of a manifest.

`estimator` has the classes, `parameters` their nested parameters; `job` makes a job of these, `examples` a training set
of what `fit` gets, and `workload` a workload of both; `fitting` trains it.
"""
