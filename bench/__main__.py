"""`python -m bench WHAT`: the same as `sparsefl bench WHAT`."""

import sys

from sparsefl.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
