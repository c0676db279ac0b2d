"""``graphkit doctor``: is the installation in order, and what can it use."""

from __future__ import annotations

import importlib.util
import platform
from importlib import metadata
from typing import Any

import click

from graphkit.cli import options, output

_NEEDED = ("numpy", "onnx", "onnx-ir", "ml_dtypes", "safetensors", "click", "rich")
_OPTIONAL = {"torch": "torch", "matplotlib": "plot", "netron": "view", "mpi4py": "mpi"}


@click.command("doctor")
@options.as_json
def command(as_json: bool) -> None:
    """Check the installation: versions, devices, what is missing. The exit code is 1 if models cannot run."""
    from graphkit import __version__
    from graphkit.errors import GraphkitError

    report: dict[str, Any] = {
        "graphkit": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    report["packages"] = {name: _version(name) for name in _NEEDED}
    runtimes = {name: version for name in ("onnxruntime", "onnxruntime-gpu") if (version := _version(name))}
    report["runtime"] = runtimes
    report["optional"] = {name: _version(name) for name in _OPTIONAL}
    problems = [f"{name} is not installed" for name, version in report["packages"].items() if version is None]
    if len(runtimes) > 1:
        problems.append(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other; uninstall both, "
            "then install one"
        )
    report.update(_runtime(problems))
    report["problems"] = problems
    if as_json:
        output.emit_json(report)
    else:
        _show(report)
    if problems:
        raise GraphkitError("; ".join(problems))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _runtime(problems: list[str]) -> dict[str, Any]:
    """Run the smallest model, and learn which devices start."""
    if importlib.util.find_spec("onnxruntime") is None:
        problems.append("ONNX Runtime is not installed: pip install onnxruntime-gpu, or onnxruntime")
        return {}
    try:
        import onnxruntime

        from graphkit.runtime import available_devices, devices

        found: dict[str, Any] = {"providers": onnxruntime.get_available_providers(), "devices": available_devices()}
        found["cuda"] = devices.cuda_problem()
        devices.check_cpu()
    except Exception as error:  # noqa: BLE001  # whatever keeps a model from running is what the user came to learn
        problems.append(f"models do not run: {error}")
        return {}
    return found


def _show(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("graphkit", report["graphkit"])
    table.add_row("Python", f"{report['python']} on {report['system']}")
    for name, version in {**report["runtime"], **report["packages"]}.items():
        table.add_row(name, version or "MISSING")
    for name, version in report["optional"].items():
        table.add_row(
            name,
            version or escape(f"not installed (onnx-graphkit[{_OPTIONAL[name]}])"),
            style=None if version else "dim",
        )
    table.add_row("devices", ", ".join(report.get("devices", [])) or "none")
    if report.get("cuda"):
        table.add_row("CUDA", escape(report["cuda"]))
    screen = output.console()
    screen.print(table)
    if not report["problems"]:
        screen.print("Models run.")
