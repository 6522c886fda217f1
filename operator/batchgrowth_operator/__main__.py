"""`python -m batchgrowth_operator`: the same as `batchgrowth operator`."""

import typer

from batchgrowth_operator.commands import operator

if __name__ == "__main__":
    typer.run(operator)
