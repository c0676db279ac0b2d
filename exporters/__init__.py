"""From a graph to something another program, or a person, reads."""

from __future__ import annotations

from graphkit.exporters.curve import draw_curve
from graphkit.exporters.inputs import random_inputs
from graphkit.exporters.onnx_file import export
from graphkit.exporters.picture import draw, listing
from graphkit.exporters.summary import Summary, summarize
from graphkit.exporters.test_vectors import TestVectors, check_test_vectors, read_test_vectors, write_test_vectors
from graphkit.exporters.verify import Difference, compare_outputs, verify

__all__ = [
    "Difference",
    "Summary",
    "TestVectors",
    "check_test_vectors",
    "compare_outputs",
    "draw",
    "draw_curve",
    "export",
    "listing",
    "random_inputs",
    "read_test_vectors",
    "summarize",
    "verify",
    "write_test_vectors",
]
