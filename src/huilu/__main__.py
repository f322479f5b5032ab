"""`python -m huilu`: the same as the `huilu` command."""

from huilu.cli import main

main()
