"""The `agentsched` command: its sub-commands, and what happens when one fails."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentsched import AgentschedError, __version__
from cli import console
from cli.advise import advise
from cli.calibrate import calibrate
from cli.compare import compare
from cli.doctor import doctor
from cli.emulate import emulate
from cli.engine import app as engine_app
from cli.explain import explain
from cli.grade import grade
from cli.list import list_names
from cli.plan import plan
from cli.record import record
from cli.replay import replay
from cli.report import report
from cli.run import run
from cli.serve import serve, verify_log
from cli.slurm import slurm_script
from cli.top import top
from cli.trace import app as trace_app
from cli.up import down, status, up
from cli.validate import validate


class _Commands(TyperGroup):
    """Turns errors into one message, one remedy and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except AgentschedError as error:
            if ctx.params.get("debug"):
                console.print_traceback()
            console.print_error(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted; what was done is kept", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            console.drop_output()
            raise typer.Exit(1) from None
        except OSError as error:
            if ctx.params.get("debug"):
                console.print_traceback()
            where = f"{error.filename}: " if error.filename else ""
            remedy = "check the path, your permission for it, and free disk space"
            console.print_error(AgentschedError(f"{where}{error.strerror or error}", remedy))
            raise typer.Exit(1) from None


app = typer.Typer(
    name="agentsched",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compare schedulers for LLM agents: run the same agents under each, and see who wins.",
)
app.command("run")(run)
app.command("report")(report)
app.command("compare")(compare)
app.command("explain")(explain)
app.command("grade")(grade)
app.command("serve")(serve)
app.command("record")(record)
app.command("replay")(replay)
app.command("emulate")(emulate)
app.command("top")(top)
app.command("verify-log")(verify_log)
app.command("advise")(advise)
app.command("validate")(validate)
app.command("calibrate")(calibrate)
app.command("doctor")(doctor)
app.command("plan")(plan)
app.command("up")(up)
app.command("down")(down)
app.command("status")(status)
app.command("slurm-script")(slurm_script)
app.command("list")(list_names)
app.add_typer(trace_app, name="trace")
app.add_typer(engine_app, name="engine")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"agentsched {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with an error; may stand anywhere.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line on sys.argv; leaves with one of the documented exit codes."""
    console.never_fail_on_encoding()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        arguments = ["--debug", *(word for word in arguments if word != "--debug")]
    try:
        app(arguments, prog_name="agentsched")
    except AgentschedError as error:
        console.print_error(error)
        sys.exit(error.exit_code)
    except Exception as error:
        if "--debug" in arguments:
            raise
        print(
            f"error: unexpected {type(error).__name__}: {error}\n"
            "  try: the same command with --debug, and report what it shows",
            file=sys.stderr,
        )
        sys.exit(1)
