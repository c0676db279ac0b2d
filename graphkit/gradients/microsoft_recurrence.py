"""ONNX Runtime's own LinearAttention and CausalConvWithState, which came before the standard's and have more forms."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.core import Tensor
from graphkit.errors import GradientError
from graphkit.gradients.lowered import Call, lowering
from graphkit.gradients.microsoft import DOMAIN
from graphkit.interpreter import apply1
from graphkit.newer.convolution import causal_convolution
from graphkit.newer.linear_attention import linear_attention

_TURNED = [0, 2, 1]


def _one_state(c: Call) -> None:
    if int(c.attribute("state_window", 0)):
        raise GradientError(f"the gradient of {c.op} is not written for a window of states (state_window)")


@lowering("LinearAttention", domain=DOMAIN)
def linear_attention_of_the_runtime(c: Call) -> Sequence[Tensor]:
    _one_state(c)
    return linear_attention(c)


@lowering("CausalConvWithState", domain=DOMAIN)
def causal_convolution_of_the_runtime(c: Call) -> Sequence[Tensor]:
    """Along one axis, with channels first or last."""
    _one_state(c)
    if int(c.attribute("ndim", 1)) != 1 or c.needed(0).rank not in (3, None):
        raise GradientError(f"the gradient of {c.op} is written for three axes (ndim = 1)")
    if not c.attribute("channels_last", 0):
        return causal_convolution(c)
    turned = [apply1("Transpose", t, perm=_TURNED) if t is not None and n in (0, 3) else t
              for n, t in enumerate(c.inputs)]  # fmt: skip
    made = causal_convolution(Call(c.op, c.domain, turned, c.attributes, c.count))
    return [apply1("Transpose", t, perm=_TURNED) for t in made]
