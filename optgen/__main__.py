"""Run the command line by `python -m optgen`, also in a checkout that is not installed."""

from optgen.cli import main

main()
