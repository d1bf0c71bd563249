"""Run the command line with `python -m optgen`, also in a checkout that is not installed."""

from optgen.cli import main

main()
