"""The parameters of an estimator, nested ones included, by the names that scikit-learn's tools use."""

import re
from collections.abc import Mapping
from typing import Any, Self

from batchgrowth.errors import Fault, SpecError
from sklearn.base import BaseEstimator

PREFIXES = ("module", "loss", "optimizer", "batch_size")
"""The parameters whose own parameters are given as PREFIX__NAME."""
_NESTED = re.compile(rf"({'|'.join(PREFIXES)})__(\w+)")


class NestedParameters(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose `module`, `loss`, `optimizer` and `batch_size` have parameters of their own, as module__NAME.

    Which nested parameters there are depends on the user's class, so scikit-learn cannot read them from __init__.
    """

    def _take_nested(self, given: Mapping[str, Any]) -> None:
        """Keep the parameters that __init__ was given beyond its own; `_check_nested` looks at their names."""
        self._nested = dict(given)

    def _check_nested(self) -> None:
        """Raise SpecError for a parameter that is neither one of __init__ nor nested."""
        for name, value in self._nested.items():
            if _NESTED.fullmatch(name) is None:
                raise SpecError([Fault(name, f"{value!r} was given, and there is no such parameter", self._which())])

    def nested(self, prefix: str) -> dict[str, Any]:
        """Return the parameters given as PREFIX__NAME, by NAME."""
        begin = f"{prefix}__"
        return {name.removeprefix(begin): value for name, value in self._nested.items() if name.startswith(begin)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters with their values, the nested ones too."""
        params: dict[str, Any] = {name: getattr(self, name) for name in self._get_param_names()}
        return params | dict(sorted(self._nested.items()))

    def set_params(self, **params: Any) -> Self:
        """Set parameters, the nested ones too, and return self. Raises ValueError for a name that is none."""
        own = self._get_param_names()
        for name in params:
            if name not in own and name not in self._nested and _NESTED.fullmatch(name) is None:
                raise ValueError(f"Invalid parameter {name!r} for estimator {type(self).__name__}: {self._which()}")
        for name, value in params.items():
            if name in own:
                setattr(self, name, value)
            else:
                self._nested[name] = value
        return self

    def _which(self) -> str:
        others = ", ".join(f"{prefix}__NAME" for prefix in PREFIXES)
        return f"give one of {', '.join(self._get_param_names())}, or {others}"
