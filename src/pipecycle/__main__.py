"""`python -m pipecycle`."""

from pipecycle.commands.cli import main

main()
