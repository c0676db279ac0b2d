"""The command line. One file a verb; what a verb imports, it imports when it runs.

Exit codes: 0 done; 1 the work failed, with one message on stderr; 2 wrong usage.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

# The verbs in the order of the help page. Their help lines stand here so that showing them imports none of them.
VERBS = {
    "export": "Record a Python function or module as an ONNX file.",
    "optimize": "Make a model smaller and faster, and check that it still computes the same.",
    "extract": "Cut a part out of a model, between some of its values.",
    "run": "Run a model on files, or on inputs made up for it.",
    "grad": "Add gradients to a model as ordinary operators and outputs.",
    "train": "Train a model's parameters, the whole step on ONNX Runtime.",
    "inspect": "Show what is in a model: operators, parameters, FLOPs, inputs and outputs.",
    "compare": "Run two models on the same inputs and show how far they differ.",
    "bench": "Time a model, or several beside each other.",
    "view": "Draw a model's graph, or open it in a browser.",
    "doctor": "Check the installation: versions, devices, what is missing.",
}

# What messages tell a Python program to write, as it is written here; and the line of a program, where there is none.
_AS_OPTIONS = {
    "unreached='zeros'": "--zeros",
    "device='cpu'": "--device cpu",
    "wrt='all'": "--wrt all",
    ", or set clip_norm": "",
    " or set clip_norm": "",
    " (an unknown line)": "",
    " at an unknown line": "",
}


class _Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"graphkit.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from graphkit.errors import did_you_mean

            raise click.UsageError(f"There is no command '{args[0]}'.{did_you_mean(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from graphkit import __version__

        click.echo(f"graphkit {__version__}")
        ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Gradients, training, optimization and inspection of ONNX models on stock ONNX Runtime.

    A command's own help: graphkit COMMAND --help.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A failure is one message, never a traceback.

    ``GRAPHKIT_TRACEBACK=1`` in the environment shows the traceback, for a report of a fault in graphkit itself.
    """
    sys.exit(_code(arguments))


def _code(arguments: Sequence[str] | None) -> int:
    try:
        result: Any = cli.main(arguments, prog_name="graphkit", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return 2
    except click.ClickException as error:
        error.show()
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`graphkit inspect m.onnx | head`); leave Python nothing to flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # whatever it is, the user gets a message and not a traceback
        if os.environ.get("GRAPHKIT_TRACEBACK", "") not in ("", "0"):
            raise
        click.echo(f"Error: {_message(error)}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _message(error: Exception) -> str:
    from graphkit.errors import GraphkitError

    if isinstance(error, GraphkitError):
        text = str(error)
        for written, option in _AS_OPTIONS.items():
            text = text.replace(written, option)
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return (
        f"unexpected {type(error).__name__}: {error}. This is a fault in graphkit; "
        "GRAPHKIT_TRACEBACK=1 shows where it happened"
    )
