"""The Array API standard's names on graphkit Tensors: ``gk.array.matmul(a, b)``.

Everything is ONNX operators underneath, so a function written with these names runs eagerly, traces, exports and has
gradients. numpy's own functions called on a Tensor (``numpy.where(x > 0, x, 0)``) come here too. Deviations from the
standard: tensors are immutable, complex numbers are not supported, and max and min may pass over a NaN, as ONNX
Runtime's kernels do.
"""

from __future__ import annotations

import math

import numpy as np

from graphkit import dtypes as _dtypes
from graphkit.array import numpy_names as _numpy_names
from graphkit.array.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from graphkit.array.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    copysign,
    cos,
    cosh,
    divide,
    equal,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    positive,
    pow,
    reciprocal,
    remainder,
    round,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from graphkit.array.inspection import astype, can_cast, finfo, iinfo, isdtype, result_type
from graphkit.array.linear import matmul, matrix_transpose, tensordot, vecdot
from graphkit.array.manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    take,
    take_along_axis,
    tile,
    unstack,
)
from graphkit.array.statistics import (
    all,
    any,
    argmax,
    argmin,
    argsort,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    nonzero,
    prod,
    sort,
    std,
    sum,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    var,
)
from graphkit.numpy_dispatch import NUMPY_FUNCTIONS

e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None
float32, float64 = _dtypes.FLOAT32, _dtypes.FLOAT64
float16, bfloat16 = _dtypes.FLOAT16, _dtypes.BFLOAT16
int8, int16, int32, int64 = (np.dtype(t) for t in ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = (np.dtype(t) for t in ("uint8", "uint16", "uint32", "uint64"))
bool = _dtypes.BOOL

_NUMPY_NAMES = {
    "absolute": abs, "arccos": acos, "arccosh": acosh, "arcsin": asin, "arcsinh": asinh, "arctan": atan,
    "arctan2": atan2, "arctanh": atanh, "concatenate": concat, "transpose": permute_dims, "cumsum": cumulative_sum,
    "cumprod": cumulative_prod, "amax": max, "amin": min, "true_divide": divide, "invert": bitwise_invert,
}  # fmt: skip
for _function in (
    abs, acos, acosh, asin, asinh, atan, atan2, atanh, ceil, clip, cos, cosh, exp, expm1, floor, isfinite, isinf, isnan,
    log, log1p, log2, log10, logaddexp, logical_not, maximum, minimum, negative, reciprocal, sign, sin, sinh, sqrt,
    square, tan, tanh, trunc, where, matmul, tensordot, broadcast_to, expand_dims, flip, moveaxis, repeat, reshape,
    roll, squeeze, stack, take, take_along_axis, tile, all, any, argmax, argmin, argsort, count_nonzero, diff, max,
    mean, min, nonzero, prod, sort, std, sum, var, tril, triu, zeros_like, ones_like, full_like, copysign, hypot,
    logical_and, logical_or, logical_xor, signbit, floor_divide, unique_values, round, positive,
):  # fmt: skip
    NUMPY_FUNCTIONS[_function.__name__] = _function
NUMPY_FUNCTIONS.update(_NUMPY_NAMES)
NUMPY_FUNCTIONS.update(_numpy_names.ALL, rint=round, fabs=abs)

__all__ = [n for n in dir() if not n.startswith("_") and n not in ("annotations", "math", "np", "NUMPY_FUNCTIONS")]
