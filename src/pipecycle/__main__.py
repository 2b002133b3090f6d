"""`python -m pipecycle`."""

from pipecycle.cli import main

main()
