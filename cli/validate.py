"""`agentsched validate`: how far the simulator is from engines and other simulators."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentsched import InvalidRunError
from cli import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.validation.findings import Finding


class Against(StrEnum):
    GPU = "gpu"
    VLLM = "vllm"
    SGLANG = "sglang"
    DYNAMO = "dynamo"
    PUBLISHED = "published"
    ENGINE = "engine"
    ALL = "all"


def validate(
    against: Annotated[
        Against,
        typer.Argument(
            help="Recorded GPU runs, vLLM's and SGLang's schedulers, Dynamo's replay, published "
            "runs, a real engine on this machine (ten minutes)."
        ),
    ] = Against.ALL,
    write: Annotated[
        Path | None, typer.Option(metavar="PAGE.md", help="Also write the page of the docs.")
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Of the real engine: keep it here, or compare the one that is here already.",
        ),
    ] = None,
) -> None:
    """Compare the simulator with what it stands for, and print the errors.

    Leaves with 3 if an error is outside its bound. What cannot be done here is skipped, and says
    how it can.
    """
    from harness.validation.dynamo import validate_dynamo
    from harness.validation.engine import engine_finding
    from harness.validation.findings import markdown
    from harness.validation.gpu import gpu_finding
    from harness.validation.published import published_finding
    from harness.validation.sglang import sglang_finding
    from harness.validation.vllm import vllm_finding

    makers: dict[Against, Callable[[], Finding]] = {
        Against.GPU: gpu_finding,
        Against.VLLM: vllm_finding,
        Against.SGLANG: sglang_finding,
        Against.DYNAMO: validate_dynamo,
        Against.PUBLISHED: published_finding,
        Against.ENGINE: lambda: engine_finding(recording, _tell),
    }
    findings = []
    for name, make in makers.items():
        if against in (name, Against.ALL):
            findings.append(make())
            _show(findings[-1])
    if write is not None:
        write.write_text(markdown(findings, f"agentsched validate {against.value}"), "utf-8")
        print(f"written: {write}")
    missed = [bound for finding in findings for bound in finding.missed]
    if missed:
        raise InvalidRunError(
            f"{len(missed)} bounds missed: {'; '.join(map(str, missed))}",
            "do not rely on these figures; docs/validation.md says what is known of them",
        )


def _tell(line: str) -> None:
    print(line, flush=True)


def _show(finding: Finding) -> None:
    print(f"{finding.title}\n")
    print(f"{finding.about}\n")
    if finding.skipped is not None:
        print(f"skipped: {finding.skipped}\n")
        return
    for table in finding.tables:
        print(f"{table.title}:")
        console.print_columns(table.columns, table.rows)
        print()
    if finding.bounds:
        kept = len(finding.bounds) - len(finding.missed)
        print(f"{kept} of {len(finding.bounds)} bounds are kept.")
    for bound in finding.missed:
        print(f"missed: {bound}")
    for note in finding.notes:
        print(f"- {note}")
    print()
