"""The command line: ``python -m pmm_mcmc --help``."""

import sys

from pmm_mcmc.workbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
