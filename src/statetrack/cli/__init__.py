"""The command line, one file a command: parse, call, print."""

from statetrack.cli.main import main as main
