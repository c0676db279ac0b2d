"""The versions of operators that read an older node as it stands.

A test holds this list against the standard's own history: each change of an operator between opset 7 and 21 is either
here or in the table of rewrites, so a change that someone makes tomorrow cannot pass unseen.
"""

from __future__ import annotations


def _listed(text: str) -> frozenset[tuple[str, int]]:
    entries = (entry.split() for entry in text.split(";"))
    return frozenset((operator, int(version)) for operator, *versions in entries for version in versions)


# More types, negative axes and indices where they were not allowed, or clearer words. Two of them are more than that on
# paper: Erf 13 no longer lists integers, which no runtime ever took, and OneHot 9 calls a negative index out of range,
# which ONNX Runtime always counted from the end as OneHot 11 does.
MORE_TYPES = _listed(
    """
    Abs 13; Add 13 14; ArgMax 11 13; ArgMin 11 13; AveragePool 11; BatchNormalization 15; Cast 9 13 21; CastLike 21;
    Ceil 13; Clip 12 13; Compress 11; Concat 11 13; Constant 9 13 19 21; ConstantOfShape 20 21; Conv 11; ConvTranspose
    11; CumSum 14; DepthToSpace 13; DequantizeLinear 19; Div 13 14; Dropout 13; Equal 11 13 19; Erf 13; Exp 13; Expand
    13; Flatten 9 11 13 21; Floor 13; Gather 11 13; GatherElements 13; GatherND 13; Gemm 9 13; Greater 9 13;
    GreaterOrEqual 16; Hardmax 11; Identity 13 14 16 19 21; If 11 13 16 19 21; IsInf 20; IsNaN 13 20; LRN 13; LeakyRelu
    16; Less 9 13; LessOrEqual 16; Log 13; LogSoftmax 11; Loop 11 13 16 19 21; LpPool 11; MatMul 9 13; Max 8 12 13;
    MaxPool 11 12; MaxUnpool 11; Mean 8 13; MeanVarianceNormalization 13; Min 8 12 13; Mod 13; Mul 13 14; Neg 13;
    NegativeLogLikelihoodLoss 13; NonMaxSuppression 11; NonZero 13; OneHot 11; OptionalGetElement 18; PRelu 9 16; Pad 13
    19 21; Pow 12 13 15; QLinearMatMul 21; Reciprocal 13; ReduceL1 11 13; ReduceL2 11 13; ReduceLogSum 11 13;
    ReduceLogSumExp 11 13; ReduceMax 11 12 13 20; ReduceMean 11 13; ReduceMin 11 12 13 20; ReduceProd 11 13; ReduceSum
    11; ReduceSumSquare 11 13; Relu 13 14; Reshape 13 19 21; Resize 19; Scan 11 16 19 21; ScatterElements 13 18;
    ScatterND 13 18; Shape 13 19 21; Sigmoid 13; Sign 13; Size 13 19 21; Slice 11 13; Softmax 11;
    SoftmaxCrossEntropyLoss 13; SpaceToDepth 13; Split 11; Sqrt 13; Squeeze 11 21; Sub 13 14; Sum 8 13; Tanh 13; Tile
    13; Transpose 13 21; Unsqueeze 11 21; Where 16
    """
)

# A new attribute, input or output that may be left out, and then all is as before.
MORE_OPTIONS = _listed(
    """
    ArgMax 12; ArgMin 12; AveragePool 10 19; Cast 19; CastLike 19; Constant 11 12; DepthToSpace 11; DequantizeLinear 13
    21; GRU 14; GatherND 12; Gemm 11; LSTM 14; LpPool 18; MaxPool 8 10; OptionalHasElement 18; Pad 18; QuantizeLinear 13
    19 21; RNN 14; Reshape 14; Resize 18; ScatterElements 16; ScatterND 16; Shape 15; TopK 11
    """
)
