"""What is built and installed: the wheel and the sdist must not depend on the two links of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("exporters", "optimizers")

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the checks clone the repository they stand in")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def linkless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of HEAD as a machine without symbolic links sees it: each link is a small text file."""
    clone = tmp_path_factory.mktemp("linkless") / "clone"
    run("git", "clone", "--quiet", "--no-hardlinks", "-c", "core.symlinks=false", ROOT, clone, cwd=ROOT)
    for name in LINKED:
        link = clone / "graphkit" / name
        assert link.is_file()
        assert not link.is_symlink()
    return clone


@pytest.fixture(scope="module")
def built(linkless: Path) -> tuple[Path, Path]:
    """The sdist of that clone, and the wheel made from the unpacked sdist (as a package index's users get it)."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", linkless / "dist", cwd=linkless)
    (sdist,) = (linkless / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(linkless.parent, filter="data")
    unpacked = linkless.parent / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", unpacked / "dist", cwd=unpacked)
    (wheel,) = (unpacked / "dist").glob("*.whl")
    return sdist, wheel


def sources() -> list[str]:
    """Every module that git knows, by the path it is imported from."""
    listed = run("git", "ls-files", "-z", "--", "graphkit", *LINKED, cwd=ROOT).split("\0")
    moved = [f"graphkit/{name}" if name.split("/")[0] in LINKED else name for name in listed if name]
    return sorted(name for name in moved if name not in {f"graphkit/{link}" for link in LINKED})


def test_the_links_are_links_in_git():
    listed = run("git", "ls-files", "--stage", "--", *(f"graphkit/{name}" for name in LINKED), cwd=ROOT).splitlines()
    assert [line.split()[0] for line in listed] == ["120000", "120000"]


def test_wheel_from_a_clone_without_links_holds_every_module_once(linkless: Path):
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", linkless / "dist", cwd=linkless)
    (wheel,) = (linkless / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert sorted(name for name in names if ".dist-info/" not in name) == sources()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_from_a_clone_with_links_holds_every_module_once(tmp_path: Path):
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone, cwd=ROOT)
    if not (clone / "graphkit" / LINKED[0]).is_symlink():
        pytest.skip("no symbolic links here")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", clone / "dist", cwd=clone)
    (wheel,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert sorted(name for name in archive.namelist() if ".dist-info/" not in name) == sources()


def test_wheel_by_way_of_the_sdist_holds_the_same(built: tuple[Path, Path]):
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        assert sorted(name for name in archive.namelist() if ".dist-info/" not in name) == sources()
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    for path in run("git", "ls-files", "-z", "--", "graphkit", *LINKED, "models", "tests", cwd=ROOT).split("\0"):
        # The links alone stay behind: in an sdist, as in the repository, the folders lie at the top.
        assert not path or (path in members) != (path in {f"graphkit/{name}" for name in LINKED}), path


def test_installed_wheel_imports(built: tuple[Path, Path], tmp_path: Path):
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    # What graphkit depends on comes from this environment; graphkit itself cannot (a .pth is not followed twice).
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, built[1], cwd=tmp_path)
    modules = "graphkit, graphkit.exporters, graphkit.optimizers"
    program = f"import {modules}; print(*(m.__file__ for m in ({modules})), sep='\\n')"
    for path in run(python, "-c", program, cwd=tmp_path, PYTHONPATH="").splitlines():
        assert Path(path).is_relative_to(environment), path
