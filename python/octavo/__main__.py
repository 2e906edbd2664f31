"""python -m octavo COMMAND: each command is a module with HELP, add_arguments(parser) and run(args)."""

from __future__ import annotations

import argparse
import importlib
import sys

# Command -> module. A module is imported only where it is asked for, or for its help.
COMMANDS = {
    "info": "octavo.info",
    "tokenize": "octavo.tokenize",
    "report": "octavo.report",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m octavo", description="FP8 training in PyTorch")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
