"""The versions of operators that read an older node as it stands.

A test holds this list against the standard's own history: each change of an operator between opset 7 and 26 is either
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
    Abs 13; Acos 22; Acosh 22; Add 13 14; ArgMax 11 13; ArgMin 11 13; Asin 22; Asinh 22; Atan 22; Atanh 22; AveragePool
    11 22; BatchNormalization 15; Bernoulli 22; Cast 9 13 21 23 25; CastLike 21 23 25; Ceil 13; Clip 12 13; Compress 11;
    Concat 11 13; Constant 9 13 19 21 23 24 25; ConstantOfShape 20 21 23 24 25; Conv 11 22; ConvTranspose 11 22; Cos 22;
    Cosh 22; CumSum 14; DeformConv 22; DepthToSpace 13; DequantizeLinear 19 24 25; Det 22; Div 13 14; Dropout 13 22; Elu
    22; Equal 11 13 19; Erf 13; Exp 13; Expand 13; EyeLike 22; Flatten 9 11 13 21 23 24 25; Floor 13; GRU 22; Gather 11
    13; GatherElements 13; GatherND 13; Gemm 9 13; GlobalAveragePool 22; GlobalLpPool 22; GlobalMaxPool 22; Greater 9
    13; GreaterOrEqual 16; GridSample 22; HardSigmoid 22; HardSwish 22; Hardmax 11; Identity 13 14 16 19 21 23 24 25; If
    11 13 16 19 21 23 24 25; InstanceNormalization 22; IsInf 20; IsNaN 13 20; LRN 13; LSTM 22; LeakyRelu 16; Less 9 13;
    LessOrEqual 16; Log 13; LogSoftmax 11; Loop 11 13 16 19 21 23 24 25; LpNormalization 22; LpPool 11 22; MatMul 9 13;
    Max 8 12 13; MaxPool 11 12 22; MaxRoiPool 22; MaxUnpool 11 22; Mean 8 13; MeanVarianceNormalization 13; Min 8 12 13;
    Mish 22; Mod 13; Mul 13 14; Multinomial 22; Neg 13; NegativeLogLikelihoodLoss 13 22; NonMaxSuppression 11; NonZero
    13; OneHot 11; OptionalGetElement 18; PRelu 9 16; Pad 13 19 21 23 24 25; Pow 12 13 15; QLinearMatMul 21;
    QuantizeLinear 24 25; RNN 22; RandomNormal 22; RandomNormalLike 22; RandomUniform 22; RandomUniformLike 22;
    Reciprocal 13; ReduceL1 11 13; ReduceL2 11 13; ReduceLogSum 11 13; ReduceLogSumExp 11 13; ReduceMax 11 12 13 20;
    ReduceMean 11 13; ReduceMin 11 12 13 20; ReduceProd 11 13; ReduceSum 11; ReduceSumSquare 11 13; Relu 13 14; Reshape
    13 19 21 23 24 25; Resize 19; RoiAlign 22; Round 22; Scan 11 16 19 21 23 24 25; ScatterElements 13 18; ScatterND 13
    18; Selu 22; Shape 13 19 21 23 24 25; Sigmoid 13; Sign 13; Sin 22; Sinh 22; Size 13 19 21 23 24 25; Slice 11 13;
    Softmax 11; SoftmaxCrossEntropyLoss 13; Softplus 22; Softsign 22; SpaceToDepth 13; Split 11; SplitToSequence 24;
    Sqrt 13; Squeeze 11 21 23 24 25; Sub 13 14; Sum 8 13; Tan 22; Tanh 13; ThresholdedRelu 22; Tile 13; TopK 24;
    Transpose 13 21 23 24 25; Unsqueeze 11 21 23 24 25; Where 16
    """
)

# A new attribute, input or output that may be left out, and then all is as before.
MORE_OPTIONS = _listed(
    """
    ArgMax 12; ArgMin 12; Attention 24 25; AveragePool 10 19; Cast 19 24; CastLike 19 24; Constant 11 12; DepthToSpace
    11; DequantizeLinear 13 21 23; GRU 14; GatherND 12; Gemm 11; LSTM 14; LpPool 18; MaxPool 8 10; OptionalHasElement
    18; Pad 18; QuantizeLinear 13 19 21 23; RNN 14; Reshape 14; Resize 18; ScatterElements 16; ScatterND 16; Shape 15;
    TopK 11
    """
)

# Versions newer than what the runtime loads, of which only the types are: a node that uses none of them is as it was.
# (What more they changed is in graphkit.newer, and the older forms of these operators are read as they stand, too.)
BEYOND = _listed(
    """
    BitShift 28; Cast 28; Celu 28; Compress 28; DepthToSpace 28; DequantizeLinear 28; Einsum 28; Mod 28; OneHot 28;
    Optional 28; OptionalGetElement 28; OptionalHasElement 28; QuantizeLinear 28; Range 27; ReduceLogSum 28;
    ReduceLogSumExp 28; ReverseSequence 28; SpaceToDepth 28; Unique 28
    """
)
