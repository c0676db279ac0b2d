"""The operators through which no gradient flows, each with the reason."""

from __future__ import annotations

from graphkit.gradients.table import not_differentiable

not_differentiable(
    "its result is an integer, a boolean or an index, which is constant almost everywhere",
    "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Equal", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "NonMaxSuppression", "NonZero", "Not", "Or",
    "Shape", "Size", "Xor", "SequenceLength", "OptionalHasElement", "ConvInteger", "MatMulInteger", "QLinearConv",
    "QLinearMatMul", "BitCast",
)  # fmt: skip
not_differentiable(
    "it rounds, so its derivative is zero almost everywhere",
    "Ceil", "Floor", "Round", "Sign", "Hardmax", "QuantizeLinear", "DynamicQuantizeLinear",
)  # fmt: skip
not_differentiable(
    "it draws at random, whatever its input holds",
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
)  # fmt: skip
not_differentiable(
    "it makes a constant, of a shape or size that is all it reads",
    "Constant", "ConstantOfShape", "EyeLike", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix",
    "SequenceEmpty",
)  # fmt: skip
not_differentiable(
    "it works on text or encoded bytes",
    "ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
)  # fmt: skip
