"""Which tests run here, and a run that fails where it should have compared with PyTorch and did not."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

REQUIRE_TORCH = os.environ.get("GRAPHKIT_REQUIRE_TORCH", "") not in {"", "0"}
TORCH_SKIPPED = pytest.StashKey[list[str]]()


def _cuda_available() -> bool:
    # ONNX Runtime's GPU build lists the provider on every machine; only the driver's device file tells.
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers() and Path("/dev/nvidia0").exists()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TORCH_SKIPPED] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {}
    if importlib.util.find_spec("torch") is None:
        absent["torch"] = pytest.mark.skip(reason="PyTorch is not installed")
    if any(item.get_closest_marker("cuda") for item in items) and not _cuda_available():
        absent["cuda"] = pytest.mark.skip(reason="no CUDA GPU here")
    for item in items:
        for name, skip in absent.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


class _TorchWatch:
    """Remember the tests, and the whole modules, that were skipped for want of PyTorch."""

    def __init__(self, skipped: list[str]) -> None:
        self.skipped = skipped

    def _note(self, report: pytest.TestReport | pytest.CollectReport, marked: bool) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if marked or "torch" in reason.lower():
            self.skipped.append(f"{report.nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A machine without a GPU skips its cuda tests whatever else they are marked with.
        if report.skipped and "cuda" not in report.keywords and not hasattr(report, "wasxfail"):
            self._note(report, "torch" in report.keywords)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report, marked=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    if REQUIRE_TORCH:
        session.config.pluginmanager.register(_TorchWatch(session.config.stash[TORCH_SKIPPED]))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and session.config.stash[TORCH_SKIPPED]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[TORCH_SKIPPED]
    if skipped:
        terminalreporter.section("GRAPHKIT_REQUIRE_TORCH is set, and tests against PyTorch were skipped", red=True)
        for line in skipped:
            terminalreporter.line(line)
