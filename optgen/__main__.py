"""`python -m optgen`: the command line, also from a checkout that is not installed."""

from optgen.cli import main

main()
