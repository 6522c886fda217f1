"""`python -m batchgrowth_operator`: the same as `batchgrowth operator`."""

import sys

from batchgrowth.cli import main

if __name__ == "__main__":
    main(["operator", *sys.argv[1:]])
