"""The listing of the paper: a regressor whose batch grows by a factor of 5 every 60 epochs.

J. Holt and S. Sievert, *Training machine learning models faster with Dask*, 2021. Only the imports of its package
differ: they were `from adadamp import DaskRegressor` and `from adadamp.dampers import GeoDamp`.
"""

# fmt: off

import torch
import torch.nn as nn
import torch.nn.functional as F


class HiddenLayer(nn.Module):
    def __init__(self, features=4, hidden=2, out=1):
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, out)

    def forward(self, x, *args, **kwargs):
        return self.out(F.relu(self.hidden(x)))


from batchgrowth_trainer import DaskRegressor
import torch.optim as optim

est = DaskRegressor(
    module=HiddenLayer, module__features=10,
    optimizer=optim.Adadelta,
    optimizer__weight_decay=1e-7,
    max_epochs=10
)

from batchgrowth_trainer.dampers import GeoDamp
est.set_params(
    batch_size=GeoDamp, batch_size__delay=60,
    batch_size__factor=5)

from sklearn.datasets import make_regression
X, y = make_regression(n_features=10)
X = torch.from_numpy(X.astype("float32"))
y = torch.from_numpy(y.astype("float32")).reshape(-1, 1)
est.fit(X, y)
