"""Store the command lines of every topology and engine: `python -m tests.engines.store_expected`.
Read the difference before committing it."""

from __future__ import annotations

from pathlib import Path

from tests.engines.rig import commands_of, pairs

FOLDER = Path(__file__).parent / "expected"


def main() -> None:
    for file in FOLDER.iterdir():
        file.unlink()
    for engine, topology in pairs():
        lines = "".join(f"{command.line}\n" for command in commands_of(engine, topology))
        (FOLDER / f"{engine}-{topology}.txt").write_text(lines, "utf-8")


if __name__ == "__main__":
    main()
