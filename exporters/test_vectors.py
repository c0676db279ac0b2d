"""Test vectors in the layout of the ONNX backend tests, with gradients beside inputs and outputs.

``test_data_set_0/`` holds ``input_0.pb``, ``output_0.pb``, ... in the model's order, each a TensorProto (or a
SequenceProto) under its name; gradients are ``gradient_0.pb``, ... and other programs that read such folders skip them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphkit.errors import ModelFileError, VerificationError
from graphkit.exporters.verify import Difference, compare_outputs
from graphkit.modelfile import ModelLike
from graphkit.modelfile.files import check_readable
from graphkit.runtime import Session

__all__ = ["TestVectors", "check_test_vectors", "read_tensor", "read_test_vectors", "write_test_vectors"]


@dataclass(frozen=True, slots=True)
class TestVectors:
    """The arrays of one test data set by name, in the model's order."""

    __test__ = False  # pytest collects classes whose name begins so

    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)


def write_test_vectors(
    folder: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    gradients: Mapping[str, Any] | None = None,
    index: int = 0,
) -> Path:
    """Write ``test_data_set_<index>`` into ``folder``, in the place of one that is there, and return its path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one = np.ones(2, "float32")
    ...     path = write_test_vectors(folder, {"x": one}, {"y": one}, {"x_grad": one})
    ...     sorted(file.name for file in path.iterdir())
    ['gradient_0.pb', 'input_0.pb', 'output_0.pb']
    """
    target = Path(folder) / f"test_data_set_{index}"
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        fresh.mkdir(parents=True)
        for kind, arrays in (("input", inputs), ("output", outputs), ("gradient", gradients or {})):
            for number, (name, value) in enumerate(arrays.items()):
                (fresh / f"{kind}_{number}.pb").write_bytes(_message(name, value).SerializeToString())
        if target.exists():
            old = target.with_name(f"{fresh.name}.old")
            target.rename(old)
            fresh.rename(target)
            shutil.rmtree(old)
        else:
            fresh.rename(target)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ModelFileError(f"{target} could not be written: {error.strerror or error}") from error
    return target


def read_test_vectors(folder: str | os.PathLike[str]) -> TestVectors:
    """Read the test data set in ``folder``; raise ``ModelFileError`` for files that are damaged."""
    path = Path(folder)
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a folder of test vectors")
    found = TestVectors()
    for file in sorted(path.glob("*.pb"), key=lambda p: [int(n) for n in re.findall(r"\d+", p.stem)]):
        kind = re.fullmatch(r"(input|output|gradient)_\d+", file.stem)
        if kind:
            name, value = read_tensor(file)
            {"input": found.inputs, "output": found.outputs, "gradient": found.gradients}[kind[1]][name] = value
    return found


def check_test_vectors(
    model: ModelLike, folder: str | os.PathLike[str], *, rtol: float | None = None, atol: float | None = None
) -> list[Difference]:
    """Run a model on the inputs in ``folder`` and raise ``VerificationError`` unless it gives the outputs there.

    Gradients are compared when the model has outputs of their names.
    """
    vectors = read_test_vectors(folder)
    session = Session(model, optimizations=False)
    known = {one.name for one in session.outputs}
    expected = vectors.outputs | {name: value for name, value in vectors.gradients.items() if name in known}
    got = session.run(vectors.inputs)
    differences = compare_outputs(expected, {name: got[name] for name in expected if name in got}, rtol=rtol, atol=atol)
    wrong = [difference for difference in differences if not difference.agrees]
    if wrong:
        lines = "\n".join(f"  {difference}" for difference in wrong)
        raise VerificationError(f"the model does not give the outputs in {folder}:\n{lines}")
    return differences


def _message(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return numpy_helper.from_list([np.asarray(element) for element in value], name)
    return numpy_helper.from_array(np.asarray(value), name)


def read_tensor(file: Path) -> tuple[str, Any]:
    """Read one ``.pb`` file: the name, and the array or list of arrays."""
    try:
        check_readable(file)
        content = file.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{file} cannot be read: {error.strerror or error}") from error
    problem: Exception | None = None
    for kind, convert in ((onnx.TensorProto, numpy_helper.to_array), (onnx.SequenceProto, numpy_helper.to_list)):
        message: Any = kind()
        try:
            message.ParseFromString(content)
            return message.name, convert(message)
        except Exception as error:  # noqa: BLE001  # protobuf's DecodeError, or numpy on bytes that do not fit the shape
            problem = problem or error
    raise ModelFileError(f"{file} ({len(content):,} bytes) is damaged or holds no tensor: {problem}") from problem
