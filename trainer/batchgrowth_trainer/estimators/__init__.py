"""The scikit-learn estimators DaskClassifier and DaskRegressor, which train with a manifest's plan, loop and bits.

`estimator` has the classes; `job` has their nested parameters, and makes a job of all parameters; `examples` makes a
training set of what `fit` gets, and `workload` a workload of module, loss and training set; `fitting` trains it.
"""
