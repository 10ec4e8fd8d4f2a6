"""Parses command lines with an engine's own parser. Run by the engine's interpreter:

    python own_parser.py vllm|sglang < lines.json      lines.json: a list of lists of arguments

Prints {"flags": every flag the parser knows, "errors": [index, message] of lines it refuses}.
The lists in flags/ are its `flags` for the pinned releases.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from importlib import import_module
from typing import Any


def parser_of(dialect: str) -> Any:
    """The parser of the server that the launcher starts."""
    if dialect == "sglang":
        parser = argparse.ArgumentParser()
        import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    kind = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    for name in ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args"):
        with contextlib.suppress(ModuleNotFoundError):
            return import_module(name).make_arg_parser(kind())
    raise SystemExit("this vLLM keeps its parser elsewhere")


def main() -> None:
    lines = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        parser = parser_of(sys.argv[1])
    errors: list[tuple[int, str]] = []
    for index, line in enumerate(lines):
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                parser.parse_args(line)
        except SystemExit:
            errors.append((index, said.getvalue().strip().splitlines()[-1]))
        except ValueError as error:
            errors.append((index, str(error)))
    flags = sorted({flag for action in parser._actions for flag in action.option_strings})
    print(json.dumps({"flags": flags, "errors": errors}))


if __name__ == "__main__":
    main()
