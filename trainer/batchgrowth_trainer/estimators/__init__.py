"""Train as a scikit-learn estimator does: DaskClassifier and DaskRegressor, on the plan, loop and bits of a manifest.

`estimator` has the classes; `job` has their nested parameters, and makes a job of all parameters; `examples` makes a
training set of what `fit` gets, and `workload` a workload of both; `fitting` trains it.
"""
