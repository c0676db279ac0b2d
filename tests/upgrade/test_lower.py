"""Each operator whose form changed: a node of today, run by ONNX Runtime as it is and at every older opset.

One line a case: operator, inputs, attributes, and the oldest opset that can say it. Each is lowered to all from that
one to 20, bit for bit unless a tolerance says why not, and brought up again; below it the error names what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime

from graphkit.errors import OperatorError
from graphkit.upgrade import lower_model, upgrade_model
from graphkit.upgrade.compatible import MORE_OPTIONS, MORE_TYPES
from graphkit.upgrade.lower_table import LOWERERS

rng = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


class Const:
    """An input that is an initializer, so that it can become an attribute."""

    def __init__(self, *values: Any, dtype: Any = np.int64) -> None:
        self.array = np.array(values, dtype)

    @classmethod
    def of(cls, array: Any) -> Const:
        made = cls()
        made.array = np.asarray(array)
        return made


@dataclass
class Case:
    op: str
    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    since: int = 7
    outputs: int = 1
    tolerance: float = 0  # where the operator has a kernel of its own that rounds otherwise than its parts
    source: int = 21
    dims: dict[int, list[str | int]] = field(default_factory=dict)  # of inputs that are not declared as they are fed

    @property
    def name(self) -> str:
        shapes = ",".join("-" if a is None else "x".join(map(str, getattr(a, "array", a).shape)) for a in self.inputs)
        return f"{self.op}({shapes}){self.attributes or ''}"


image = f(2, 3, 5, 4)
positive = np.abs(f(2, 3, 4)) + 0.1
many = f32(-np.inf, -1.5, -0.0, 0.0, np.nan, 2.5, np.inf)
small = [np.int8, np.uint8, np.int16, np.uint16]
REDUCTIONS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
]  # fmt: skip
# fmt: off
CASES = [
    # Axes that were attributes, counted from the front.
    *(
        Case(op, [positive, *axes], attributes)
        for op in REDUCTIONS
        for axes, attributes in [
            ([], {}), ([], {"keepdims": 0}), ([Const(1)], {}), ([Const(-1, 0)], {"keepdims": 0}), ([Const()], {}),
        ]
    ),
    *(Case(op, [positive, np.array([1, -1])], {}, since) for op, since in [("ReduceSum", 13), ("ReduceMax", 18)]),
    *(Case(op, [positive, Const()], {"noop_with_empty_axes": 1}) for op in ("ReduceSum", "ReduceMax", "ReduceMean")),
    Case("ReduceMax", [f(3, 4) > 0, Const(1)], {}, source=21),
    *(Case("ReduceMin", [ramp(3, 4, dtype=dtype), Const(1)]) for dtype in (np.int8, np.uint8)),
    Case("Squeeze", [f(1, 3, 1)]),
    Case("Squeeze", [f(1, 3, 1), Const(-1)]),
    Case("Squeeze", [f(1, 3, 1), np.array([0])], {}, 13),
    Case("Unsqueeze", [f(3, 4), Const(0, -1)]),
    Case("Unsqueeze", [f(3, 4), np.array([1])], {}, 13),
    Case("ArgMax", [np.round(f(3, 4))], {"axis": -1, "keepdims": 0}),
    Case("ArgMin", [np.round(f(3, 4))], {"axis": -2, "select_last_index": 1}, 12),
    Case("Concat", [f(2, 3), f(2, 1)], {"axis": -1}),
    Case("Flatten", [f(2, 3, 4)], {"axis": -1}),
    Case("Gather", [f(4, 3), Const(2, 0)], {"axis": -1}),
    Case("Compress", [f(3, 4), np.array([True, False, True])], {"axis": -2}, 9),
    # Parts, pads, slices, counts.
    Case("Split", [f(6, 2)], {"num_outputs": 3}, outputs=3),
    Case("Split", [f(7, 2)], {"num_outputs": 3}, outputs=3),
    Case("Split", [f(2, 7)], {"num_outputs": 3, "axis": -1}, outputs=3),
    Case("Split", [f(7, 2)], {"num_outputs": 3}, 10, outputs=3, dims={0: ["n", 2]}),
    Case("Split", [f(2, 8)], {"num_outputs": 2, "axis": -1}, 10, outputs=2, dims={0: [2, "n"]}),
    Case("Split", [f(6, 2), Const(1, 5)], outputs=2),
    Case("Split", [f(6, 2), np.array([1, 0, 5])], {}, 10, outputs=3),
    Case("Pad", [f(2, 3), Const(1, 0, 0, 2)]),
    Case("Pad", [f(4, 3), Const(2, 3), Const.of(np.float32(1.5)), Const(-1)]),
    Case("Pad", [f(4, 3), np.array([1, 2]), np.float32(1.5), Const(0)], {}, 11),
    Case("Pad", [f(4, 3), Const(1, 2), None, np.array([1])], {"mode": "edge"}, 18),
    Case("Pad", [f(4, 5), Const(1, 2, 3, 1)], {"mode": "reflect"}),
    Case("Pad", [f(4, 5), Const(1, 2, 3, 1)], {"mode": "wrap"}, 19),
    Case("Pad", [f(4, 5), Const(-1, 0, 0, -2)]),
    Case("Pad", [ramp(4, dtype=np.int64), Const(1, 2), np.int64(7)], {}, 11),
    Case("Pad", [f(4).astype(np.float64), Const(1, 2), Const.of(np.float64(0.1))], {}, 11),
    Case("Slice", [f(4, 5), Const(1, 0), Const(3, 1000)]),
    Case("Slice", [f(4, 5), Const(-3), Const(-1), Const(-1)]),
    Case("Slice", [f(4, 5), Const(1), Const(9), Const(1), Const(2)], {}, 10),
    Case("Slice", [f(4, 5), np.array([1]), np.array([3]), Const(-1, dtype=np.int64)], {}, 10),
    Case("Slice", [f(4, 5), np.array([1]), np.array([3]), np.array([1])], {}, 11),
    Case("TopK", [f(3, 6), Const(2)], outputs=2),
    Case("TopK", [np.round(f(5, 4)), Const(3)], {"axis": 0, "largest": 0}, outputs=2),
    Case("TopK", [f(3, 6), np.array([2])], {}, 10, outputs=2),
    Case("TopK", [ramp(3, 6, dtype=np.int64), Const(2)], {}, 11, outputs=2),
    # Shapes and moving about.
    Case("Shape", [image]),
    *(Case("Shape", [image], a) for a in ({"start": 1}, {"start": -3, "end": -1}, {"end": 2}, {"start": 2, "end": 9})),
    Case("Shape", [image], {"start": 5}),
    Case("Shape", [image], {"start": 3, "end": 1}),
    Case("Reshape", [f(2, 3, 4), Const(0, -1)]),
    Case("Reshape", [f(2, 3, 4), Const(4, -1)], {"allowzero": 1}),
    Case("Reshape", [f(0, 3, 4), Const(0, 4, 3)], {"allowzero": 1}),
    Case("Reshape", [f(3, 0, 4), Const(4, 0, 3)], {"allowzero": 1}),
    Case("Reshape", [f(2, 12), np.array([4, 6])], {"allowzero": 1}, 14),
    Case("Trilu", [f(2, 3, 4)]),
    Case("Trilu", [f(3, 4), Const.of(np.int64(-1))], {"upper": 0}),
    Case("Trilu", [many.reshape(7, 1) * np.ones((1, 5), np.float32)], {"upper": 0}),
    Case("Trilu", [f(2, 3, 4), np.int64(1)], {}, 9),
    Case("Trilu", [f(2, 3, 4)], {"upper": 0}, 11, dims={0: ["n", 3, "m"]}),
    Case("Trilu", [ramp(3, 4, dtype=np.int64)], {"upper": 1}),
    Case("Range", [Const.of(np.int64(1)), Const.of(np.int64(9)), Const.of(np.int64(3))]),
    Case("Range", [np.int64(1), np.int64(9), np.int64(3)], {}, 11),
    Case("ConstantOfShape", [Const(2, 3)], {"value": numpy_helper.from_array(f32(2))}),
    Case("ConstantOfShape", [np.array([2, 3])], {}, 8),
    Case("EyeLike", [f(3, 4)], {"k": 1}),
    Case("EyeLike", [f(3, 4)], {}, 9, dims={0: ["n", 4]}),
    Case("Expand", [f(3, 1), Const(2, 3, 4)]),
    Case("Expand", [f(3, 1), np.array([2, 3, 4])], {}, 8),
    Case("ScatterElements", [f(3, 3), Const.of([[1, 0, 2]]), f(1, 3)], {"axis": -2}, 9),
    Case("ScatterElements", [f(3, 3), Const.of([[1, 0, 2]]), f(1, 3)], {"reduction": "add"}, 16),
    Case("ScatterElements", [f(3, 3), Const.of([[1, 0, 2]]), f(1, 3)], {"reduction": "max"}, 18),
    Case("ScatterND", [f(4, 3), Const.of([[1], [3]]), f(2, 3)], {}, 11),
    Case("ScatterND", [f(4, 3), Const.of([[1], [3]]), f(2, 3)], {"reduction": "mul"}, 16),
    Case("ScatterND", [f(4, 3), Const.of([[1], [3]]), f(2, 3)], {"reduction": "min"}, 18),
    Case("GatherND", [f(3, 4), Const.of([[1], [0], [3]])], {"batch_dims": 1}, 12),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2}),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, 11),
    Case("OneHot", [Const(1, 0, 3), Const(4), f32(-1, 2)], {"axis": 0}, 9),
    # Elementwise: bounds, choices, types that came later.
    *(
        Case("Clip", [many, *bounds])
        for bounds in ([], [Const.of(np.float32(-1))], [None, Const.of(np.float32(1))])
    ),
    Case("Clip", [many, Const.of(np.float32(2)), Const.of(np.float32(-2))], {}, 8),
    Case("Clip", [many, np.float32(-1), np.float32(1)], {}, 8),
    Case("Clip", [many.astype(np.float64), Const.of(np.float64(-0.1)), Const.of(np.float64(0.1))], {}, 8),
    Case("Clip", [ramp(5, dtype=np.int64), Const.of(np.int64(1)), np.int64(3)], {}, 9),
    Case("Clip", [ramp(5, dtype=np.uint8), Const.of(np.uint8(1)), np.uint8(3)], {}, 9),
    *(Case(op, [f(2, 3), f(2, 3), f(2, 3)]) for op in ("Max", "Min")),
    *(Case(op, [f(2, 3), f(3)], {}, 8) for op in ("Max", "Min")),
    *(Case(op, [ramp(4, dtype=np.int64), np.array([2]), np.array([3, 0, 1, 9])], {}, 9) for op in ("Max", "Min")),
    *(Case(op, [f(2, 3), f(3), f(1)], tolerance=1e-6) for op in ("Sum", "Mean")),
    Case("Relu", [ramp(5, dtype=np.int32) - 2], {}, 9),
    Case("Pow", [np.abs(f(3, 4)), Const.of(np.int64(2))]),
    Case("Pow", [np.abs(f(3, 4)), np.array([1, 2, 3, 0])], tolerance=1e-6),
    Case("Pow", [ramp(5, dtype=np.int64), Const.of(np.int64(2))], {}, 12),
    Case("Equal", [many, many[::-1].copy()]),
    Case("Equal", [f(2, 3) > 0, f(3) > 0]),
    *(Case(op, [many, np.roll(many, 1)]) for op in ("GreaterOrEqual", "LessOrEqual")),
    *(Case(op, [np.array([1, 2, 3]), np.array([3, 2, 1])], {}, 9) for op in ("GreaterOrEqual", "Less")),
    Case("IsNaN", [many]),
    *(Case("IsInf", [many], a) for a in ({}, {"detect_negative": 0}, {"detect_positive": 0})),
    Case("IsInf", [many.astype(np.float16)]),
    *(Case(op, [ramp(4, dtype=d), np.full(4, 3, d)], {}) for op in ("Add", "Sub", "Mul", "Div") for d in small[:2]),
    Case("Where", [f(2, 3) > 0, many[:3], f(2, 1)]),
    Case("Where", [f(2, 3) > 0, ramp(2, 3, dtype=np.int64), np.array([5])]),
    Case("Where", [f(2, 3) > 0, f(2, 3), f(3)], {}, 9, dims={0: ["n", 3]}),
    Case("CastLike", [f32(1.5, -2.5), np.array([1])]),
    Case("Cast", [f32(1.5, -2.5, 0)], {"to": TensorProto.FLOAT16, "saturate": 1}),
    Case("Identity", [f(3)]),
    Case("PRelu", [f(2, 3, 4), f(3, 1)]),
    Case("Mod", [ramp(5, dtype=np.int32) - 2, np.full(5, 3, np.int32)], {}, 10),
    Case("Dropout", [f(3, 4)]),
    Case("Dropout", [f(3, 4), Const.of(np.float32(0.3))], outputs=2),
    Case("Dropout", [f(3, 4), np.float32(0.3), Const.of(False)], {"seed": 3}),
    Case("Gemm", [f(3, 4), f(5, 4), f(5)], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", [f(3, 4), f(4, 5)], {"alpha": 0.5}),
    Case("BitwiseNot", [ramp(4, dtype=np.int32)], {}, 18),
    Case("Erf", [f(3)], {}, 9),
    Case("Round", [f(3)], {}, 11),
    Case("Sinh", [f(3)], {}, 9),
    # Activations and losses, by their function bodies.
    Case("Gelu", [f(3, 4)], {}, 9, tolerance=1e-6),
    Case("Gelu", [f(3, 4)], {"approximate": "tanh"}, tolerance=1e-6),
    Case("Mish", [f(3, 4)], tolerance=1e-6),
    Case("HardSwish", [f(3, 4)], tolerance=1e-6),
    Case("Celu", [f(3, 4)], {"alpha": 2.0}, tolerance=1e-6),
    Case("Celu", [f(3, 4)], tolerance=1e-6),
    Case("Celu", [f32(3e38, -3e38, 1.5, -1.5, 0)], {"alpha": 0.5}, tolerance=1e-6),
    Case("Swish", [f(3, 4)], {"alpha": 1.5}, source=24, tolerance=1e-6),
    Case("Shrink", [f(3, 4)], {"lambd": 0.3, "bias": 0.1}, tolerance=1e-6),
    Case("ThresholdedRelu", [f(3, 4)], {"alpha": 0.3}),
    Case("NegativeLogLikelihoodLoss", [f(3, 5), np.array([1, 0, 4])], {}, 11, tolerance=1e-6),
    Case("SoftmaxCrossEntropyLoss", [f(3, 5), np.array([1, 0, 4])], {"reduction": "sum"}, 11, tolerance=1e-5),
    # Normalization.
    *(
        Case(op, [f(*shape)], {"axis": axis}, tolerance=1e-6)
        for op in ("Softmax", "LogSoftmax")
        for shape, axis in [((2, 3, 4), -1), ((2, 3, 4), 1), ((2, 3, 4), 0), ((2, 3, 1, 1), 1), ((5,), 0)]
    ),
    Case("Hardmax", [f(2, 3, 4)], {"axis": -2}),
    Case("Softmax", [f(2, 3)], {}, dims={0: ["n", "m"]}),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], tolerance=1e-5),
    Case("LayerNormalization", [f(2, 3, 4), f(3, 4)], {"axis": 1, "epsilon": 1e-2}, tolerance=1e-5),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], outputs=3, tolerance=1e-5),
    Case("RMSNormalization", [f(2, 3, 4), f(4)], source=23, tolerance=1e-5),
    Case("GroupNormalization", [f(2, 6, 4, 3), f(6), f(6)], {"num_groups": 3}, tolerance=1e-5),
    Case("GroupNormalization", [f(2, 6, 4), f(6), f(6)], {"num_groups": 2}, tolerance=1e-5, dims={0: ["n", 6, "l"]}),
    Case("BatchNormalization", [image, f(3), f(3), f(3), np.abs(f(3))], {"epsilon": 1e-3}),
    Case("BatchNormalization", [image, f(3), f(3), f(3), np.abs(f(3))], {"training_mode": 1, "momentum": 0.8},
         outputs=3, tolerance=1e-5),
    Case("InstanceNormalization", [image, f(3), f(3)]),
    Case("MeanVarianceNormalization", [image], tolerance=1e-5),
    # Where a sample is taken.
    *(
        Case("Resize", [image, None, Const(1, 1, 2, 3, dtype=np.float32)], attributes, since)
        for attributes, since in [
            ({}, 11), ({"mode": "cubic", "cubic_coeff_a": -0.5}, 11),
            ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 7),
            ({"coordinate_transformation_mode": "asymmetric", "mode": "linear"}, 7),
            ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}, 11),
            ({"coordinate_transformation_mode": "half_pixel_symmetric", "mode": "linear"}, 19),
        ]
    ),
    Case("Resize", [image, None, Const(1, 1, 0.5, 0.5, dtype=np.float32)],
         {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}, 10),
    Case("Resize", [image, None, f32(1, 1, 2, 0.5)], {"mode": "linear"}, 11),
    Case("Resize", [image, None, None, Const(2, 3, 7, 9)], {"mode": "linear"}, 11),
    Case("Resize", [image, None, f32(0.5, 0.6)], {"mode": "linear", "axes": [2, -1]}, 11),
    Case("Resize", [image, None, Const(2, 1.5, dtype=np.float32)], {"mode": "linear", "axes": [3, 2]}, 11),
    Case("Resize", [image, None, None, Const(7, 9)], {"mode": "linear", "axes": [2, 3]}, 11),
    Case("Resize", [image, None, f32(0.5, 0.6)], {"mode": "linear", "antialias": 1, "axes": [2, 3]}, 18),
    Case("Resize", [image, Const(0.2, 0.1, 0.9, 1.3, dtype=np.float32), None, Const(6, 6)],
         {"mode": "linear", "axes": [2, 3], "coordinate_transformation_mode": "tf_crop_and_resize"}, 11),
    *(
        Case("GridSample", [image, np.clip(f(2, 4, 6, 2), -1.3, 1.3)], a, 16)
        for a in ({}, {"mode": "cubic"}, {"mode": "nearest", "padding_mode": "border"})
    ),
    Case("GridSample", [f(1, 1, 3, 3, 3), np.clip(f(1, 2, 2, 2, 3), -1, 1)], {}, 20),
    Case("RoiAlign", [f(1, 2, 8, 8), f32(1, 1, 5, 6).reshape(1, 4), np.array([0])],
         {"output_height": 3, "coordinate_transformation_mode": "output_half_pixel"}, 10),
    Case("RoiAlign", [f(1, 2, 8, 8), f32(1, 1, 5, 6).reshape(1, 4), np.array([0])], {"output_height": 3}, 16),
    Case("DFT", [f(2, 6, 1)], {}, 17),
    Case("DFT", [f(2, 6, 4, 2), None, Const.of(np.int64(1))], {"inverse": 1}, 17),
    # Windows.
    Case("MaxPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "strides": [2, 2]}),
    Case("MaxPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2]}, 8, outputs=2),
    Case("MaxPool", [f(1, 2, 7, 6)], {"kernel_shape": [2, 2], "dilations": [2, 3]}, 10),
    Case("AveragePool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, tolerance=1e-6),
    Case("AveragePool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 3], "ceil_mode": 1, "strides": [2, 2]}, 10,
         tolerance=1e-6),
    Case("AveragePool", [f(1, 2, 9, 9)], {"kernel_shape": [2, 2], "dilations": [2, 2]}, 19),
    Case("LpPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "p": 2}),
    Case("LpPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "ceil_mode": 1, "strides": [2, 2]}, 18),
    Case("Conv", [f(1, 4, 7, 6), f(6, 2, 3, 2)], {"group": 2, "auto_pad": "SAME_UPPER"}),
    Case("ConvTranspose", [f(1, 4, 5, 6), f(4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    Case("ConvTranspose", [f(1, 4, 5, 6), f(4, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, 11),
    # Recurrent, quantized, and the rest.
    *(
        Case(op, [f(4, 2, 3), f(1, k * 5, 3), f(1, k * 5, 5)], {"hidden_size": 5}, outputs=n)
        for op, k, n in [("RNN", 1, 2), ("GRU", 3, 2), ("LSTM", 4, 3)]
    ),
    Case("QuantizeLinear", [f(3, 4), np.float32(0.05), np.uint8(7)], {}, 10),
    Case("QuantizeLinear", [f(3, 4), f32(0.05, 0.1, 0.2), np.array([1, 2, 3], np.int8)], {"axis": 0}, 13),
    Case("DequantizeLinear", [ramp(3, 4, dtype=np.uint8), np.float32(0.05), np.uint8(7)], {}, 10),
    Case("DequantizeLinear", [ramp(3, 4, dtype=np.int8), f32(1, 2, 3, 4)], {"axis": 1}, 13),
    Case("DequantizeLinear", [ramp(4, 4, dtype=np.int8), f(2, 4)], {"axis": 0, "block_size": 2}, 21),
    Case("DynamicQuantizeLinear", [f(3, 4)], {}, 11, outputs=3),
    Case("CumSum", [f(3, 4), Const.of(np.int64(1))], {"reverse": 1}, 11),
    Case("Einsum", [f(2, 3), f(3, 4)], {"equation": "ij,jk->ik"}, 12),
    Case("Attention", [f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4)], {}, 10, source=23, tolerance=1e-5),
    Case("RotaryEmbedding", [f(1, 2, 3, 4), f(5, 2), f(5, 2), np.array([[0, 1, 2]])], source=23,
         tolerance=1e-5),
    Case("CenterCropPad", [f(5, 4), np.array([3, 6])], {}, 11),
    Case("AffineGrid", [f(1, 2, 3), Const(1, 1, 3, 4)], {}, 20),
]
# fmt: on


def build(case: Case) -> onnx.ModelProto:
    initializers, inputs, names = [], [], []
    for index, value in enumerate(case.inputs):
        if value is None:
            names.append("")
        elif isinstance(value, Const):
            names.append(f"constant{index}")
            initializers.append(numpy_helper.from_array(value.array, names[-1]))
        else:
            array = np.asarray(value)
            names.append(f"input{index}")
            shape = case.dims.get(index, list(array.shape))
            inputs.append(helper.make_tensor_value_info(names[-1], helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    outputs = [f"output{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="the node", **case.attributes)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.source)], ir_version=11)


def run(model: onnx.ModelProto, case: Case) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {
        f"input{index}": np.asarray(value)
        for index, value in enumerate(case.inputs)
        if value is not None and not isinstance(value, Const)
    }
    return session.run(None, feeds)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lowered_node_computes_the_same(case: Case):
    newest = build(case)
    expected = run(newest, case)
    for value, array in zip(newest.graph.output, expected, strict=True):
        value.CopyFrom(
            helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        )
    model = ir.from_proto(newest)
    missing = 0
    for opset in range(max(7, case.since), 21):
        lowered = model.clone()
        lower_model(lowered, opset)
        proto = ir.to_proto(lowered)
        assert {entry.domain: entry.version for entry in proto.opset_import} == {"": opset}
        onnx.checker.check_model(proto)
        assert [value.name for value in proto.graph.output] == [value.name for value in newest.graph.output]
        try:
            got = run(proto, case)
        except NotImplementedByRuntime:  # float64 Clip at opset 11 and the like: valid, and without a kernel
            missing += 1
        else:
            _same(got, expected, case, opset)
        upgrade_model(lowered, max(21, case.source))
        _same(run(ir.to_proto(lowered), case), expected, case, opset)
    assert missing <= 4
    for opset in range(7, min(case.since, 21)):
        before = model.clone()
        with pytest.raises(OperatorError, match=rf"^{case.op} at node 'the node' .*Write opset={case.since} or newer"):
            lower_model(before, opset)
        assert ir.to_proto(before).SerializeToString() == ir.to_proto(model).SerializeToString()


def _same(got: list[np.ndarray], expected: list[np.ndarray], case: Case, opset: int) -> None:
    for found, wanted in zip(got, expected, strict=True):
        assert found.dtype == wanted.dtype, opset
        assert found.shape == wanted.shape, opset
        if case.tolerance:
            np.testing.assert_allclose(found, wanted, case.tolerance, case.tolerance, err_msg=f"opset {opset}")
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=f"opset {opset}")


# Nothing passes by accident


def _changes() -> set[tuple[str, int]]:
    """Every change of an operator from opset 8 to 26 that a node of the version after it may have to undo."""
    history = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= 26:
            history[schema.name].add(schema.since_version)
    return {(name, v) for name, versions in history.items() for v in versions if v > 7 and v > min(versions)}


def test_every_change_is_undone_or_checked_by_the_schema():
    gone = {("Scatter", 11), ("Upsample", 10)}  # the versions that only say that the name is no longer used
    assert _changes() - LOWERERS.keys() - MORE_TYPES - MORE_OPTIONS == gone


def test_the_table_names_only_changes():
    first = {(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    assert LOWERERS.keys() <= first
