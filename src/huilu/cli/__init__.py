"""The command line: thin commands over assembly. stdout is data, stderr is progress; no torch.

Entry point `main`. Exit status: 0 ok, 1 failed, 2 usage, 3 undetermined, 4 refused, 5 timed out, 6 locked,
130 interrupted; an error's own class says which.
"""

from __future__ import annotations

import sys

from typer.exceptions import TyperException

from huilu import errors
from huilu.cli.app import build
from huilu.cli.output import complain


def main() -> None:
    """Run the command in `sys.argv` and end the process with its status."""
    try:
        status = build(sys.argv[1:])(standalone_mode=False)
    except errors.HuiluError as error:
        complain(error)
        status = error.exit_status
    except TyperException as error:
        # A group without a command has no message: its help, already printed, is the answer.
        if message := error.format_message():
            complain(errors.Usage(message, fix="huilu --help, or huilu COMMAND --help"))
        status = error.exit_code
    sys.exit(status if isinstance(status, int) else 0)
