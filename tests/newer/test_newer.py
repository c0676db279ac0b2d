"""What opsets 27 and 28 added: applied, traced and read from files, with gradients."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.errors import ModelFileError, OperatorError
from graphkit.modelfile import read_model
from graphkit.newer import NEWER, PREVIEW, written
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.optimizers.opsets import change_opset
from graphkit.schemas import NEWEST_OPSET, READABLE_OPSET
from graphkit.testing import check_gradients, differences
from graphkit.upgrade import lower_model
from graphkit.upgrade.compatible import BEYOND

op = gk.op
rng = np.random.default_rng(0)


def draw(*shape):
    return rng.normal(size=shape)


# Two batches of three tokens; four query heads of width 3, two heads of keys (of width 3) and values (of width 2).
QUERY, KEY, VALUE = draw(2, 3, 12), draw(2, 3, 6), draw(2, 3, 4)
STATE, DECAY, SCALAR_DECAY = draw(2, 2, 3, 2), draw(2, 3, 6), draw(2, 3, 2)
BETA, ONE_BETA = draw(2, 3, 2), draw(2, 3, 1)
GROUPS = {"q_num_heads": 4, "kv_num_heads": 2}
X, W, BIAS, PAST = draw(2, 3, 5), draw(3, 1, 4), draw(3), draw(2, 3, 3)

# name: operator, inputs, attributes, outputs
CASES = {
    "SwiGLU": ("SwiGLU", [draw(2, 3), draw(2, 3)], {}, 1),
    "SwiGLU, alpha": ("SwiGLU", [draw(2, 3), draw(2, 3)], {"alpha": 1.7}, 1),
    "linear": ("LinearAttention", [QUERY, KEY, VALUE], GROUPS | {"update_rule": "linear"}, 2),
    "linear, past": ("LinearAttention", [QUERY, KEY, VALUE, STATE], GROUPS | {"update_rule": "linear"}, 2),
    "linear, as many heads": (
        "LinearAttention", [KEY, KEY + 1, VALUE], {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}, 2),
    "linear, one head of keys": (
        "LinearAttention", [QUERY, KEY[..., :3], VALUE], {"q_num_heads": 4, "kv_num_heads": 1, "update_rule": "linear",
         "scale": 0.7, "chunk_size": 2}, 2),
    "gated": ("LinearAttention", [QUERY, KEY, VALUE, STATE, DECAY], GROUPS | {"update_rule": "gated"}, 2),
    "gated by head": ("LinearAttention", [QUERY, KEY, VALUE, None, SCALAR_DECAY], GROUPS | {"update_rule": "gated"}, 2),
    "delta": ("LinearAttention", [QUERY, KEY, VALUE, STATE, None, BETA], GROUPS | {"update_rule": "delta"}, 2),
    "delta, one rate": ("LinearAttention", [QUERY, KEY, VALUE, None, None, ONE_BETA],
                        GROUPS | {"update_rule": "delta"}, 2),
    "gated delta": ("LinearAttention", [QUERY, KEY, VALUE, STATE, DECAY, BETA], GROUPS, 2),
    "gated delta by head, scale": (
        "LinearAttention", [QUERY, KEY, VALUE, None, SCALAR_DECAY, ONE_BETA], GROUPS | {"scale": 0.5}, 2),
    "one token": (
        "LinearAttention", [QUERY[:, :1], KEY[:, :1], VALUE[:, :1], STATE, DECAY[:, :1], BETA[:, :1]], GROUPS, 2),
    "convolution": ("CausalConvWithState", [X, W], {}, 2),
    "convolution, bias": ("CausalConvWithState", [X, W, BIAS], {"activation": "silu"}, 2),
    "convolution, past": ("CausalConvWithState", [X, W, None, PAST], {"activation": "swish"}, 2),
    "convolution, bias and past": ("CausalConvWithState", [X, W, BIAS, PAST], {}, 2),
    "convolution of few columns": ("CausalConvWithState", [X[..., :1], W, BIAS, PAST], {}, 2),
    "convolution of kernel 1": ("CausalConvWithState", [X, W[..., :1], BIAS], {"activation": "silu"}, 2),
    "Mod": ("Mod", [np.array([-5.3, 5.3, -4.1, 2.0]), np.array([3.0, -3.0, -1.5, 0.7])], {}, 1),
    "SpaceToDepth": ("SpaceToDepth", [draw(2, 3, 4, 6)], {"blocksize": 2, "mode": "CRD"}, 1),
}  # fmt: skip
SECOND_ORDER = ["SwiGLU, alpha", "convolution of few columns"]


def narrow(arrays):
    return [None if a is None else a.astype("f") if a.dtype.kind == "f" else a for a in arrays]


def one_node(operator, arrays, attributes, outputs, symbolic=False, loss=False):
    """A file of one node at the newest opset; with ``loss``, of the mean square of all its outputs."""
    names = [f"x{n}" if a is not None else "" for n, a in enumerate(arrays)]
    made = [f"y{n}" for n in range(outputs)]
    nodes = [onnx.helper.make_node(operator, names, made, name="newer", **attributes)]
    results = [onnx.helper.make_tensor_value_info(y, 1, None) for y in made]
    if loss:
        nodes += [onnx.helper.make_node("ReduceSumSquare", [y], [f"s_{y}"], keepdims=0) for y in made]
        nodes.append(onnx.helper.make_node("Sum", [f"s_{y}" for y in made], ["loss"]))
        results = [onnx.helper.make_tensor_value_info("loss", 1, [])]
    infos = [onnx.helper.make_tensor_value_info(
        f"x{n}", 1, [f"d{n}_{k}" for k in range(a.ndim)] if symbolic else a.shape)
        for n, a in enumerate(arrays) if a is not None]  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "g", infos, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", READABLE_OPSET)], ir_version=14)


def full_of(arrays):
    """The places of a list that may have gaps, and a function that fills a list without them back in."""
    given = [n for n, a in enumerate(arrays) if a is not None]

    def full(tensors):
        by_place = dict(zip(given, tensors, strict=True))
        return [by_place.get(n) for n in range(len(arrays))]

    return given, full


def applied(name):
    operator, arrays, attributes, outputs = CASES[name]
    given, full = full_of(arrays)

    def f(*tensors):
        if tensors[0].dtype == np.float32:
            return getattr(op, operator)(*full(tensors), outputs=outputs, **attributes)
        return written(operator, full(tensors), attributes, outputs)  # the standard has no float64 form of some

    return f, [arrays[n] for n in given]


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    f, given = applied(name)
    check_gradients(f, given, order=2 if name in SECOND_ORDER else 1)


@pytest.mark.parametrize("name", CASES)
def test_as_the_reference(name):
    operator, arrays, attributes, outputs = CASES[name]
    arrays = narrow(arrays)
    given, full = full_of(arrays)
    feeds = {f"x{n}": arrays[n] for n in given}
    model = one_node(operator, arrays, attributes, outputs)
    expected = ReferenceEvaluator(model).run(None, feeds)
    eager = getattr(op, operator)(*arrays, outputs=outputs, **attributes)
    traced = gk.trace(lambda *a: getattr(op, operator)(*full(a), outputs=outputs, **attributes),
                      *[arrays[n] for n in given])  # fmt: skip
    results = [
        [t.numpy() for t in eager],
        list(gk.run(traced, [arrays[n] for n in given], optimizations=False).values()),
        list(gk.run(model, feeds).values()),
        list(gk.run(one_node(operator, arrays, attributes, outputs, symbolic=True), feeds).values()),
        [t.numpy() for t in gk.load(model).run(feeds)],
        list(gk.run(gk.optimize(model, preset="inference"), feeds).values()),
    ]
    for got in results:
        for mine, theirs in zip(got, expected, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one token", "gated delta", "convolution, past"])
def test_second_order(name):
    f, given = applied(name)
    check_gradients(f, given, order=2)


@pytest.mark.parametrize("symbolic", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", CASES)
def test_the_gradients_of_a_file(name, symbolic):
    operator, arrays, attributes, outputs = CASES[name]
    arrays = narrow(arrays)
    given, full = full_of(arrays)
    feeds = {f"x{n}": arrays[n] for n in given}
    model = add_gradients(one_node(operator, arrays, attributes, outputs, symbolic, loss=True), "loss", list(feeds))
    assert {n.domain for n in model.graph.node} == {""}
    assert model.opset_import[0].version <= NEWEST_OPSET
    got = gk.run(model, feeds, optimizations=False)

    def loss(*tensors):
        return sum((y * y).sum() for y in written(operator, full(tensors), attributes, outputs))

    wide = [arrays[n].astype(np.float64) for n in given]
    for k, n in enumerate(given):
        np.testing.assert_allclose(got[f"x{n}_grad"], differences(loss, wide, k, 1e-6), rtol=1e-3, atol=1e-3)


HALF = ["float16", "bfloat16"]
IN_HALF = [
    "SwiGLU, alpha", "gated delta", "gated delta by head, scale", "convolution, bias and past", "convolution, bias",
    "Mod",
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), list(itertools.product(IN_HALF, HALF)))
def test_half_precision(name, dtype):
    """Computed in float32 or in half, and in the type that the standard says."""
    operator, arrays, attributes, outputs = CASES[name]
    kind = gk.tensor([0.0], dtype=dtype).dtype
    tensors = [None if a is None else gk.tensor(a.astype("f")).astype(dtype) for a in arrays]
    exact = getattr(op, operator)(*[None if t is None else t.astype("float32") for t in tensors], outputs=outputs,
                                  **attributes)  # fmt: skip
    given, full = full_of(tensors)
    eager = getattr(op, operator)(*tensors, outputs=outputs, **attributes)
    f = lambda *a: getattr(op, operator)(*full(a), outputs=outputs, **attributes)
    model = gk.trace(f, *[tensors[n].numpy() for n in given])
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    traced = gk.run(model, [tensors[n].numpy() for n in given]).values()
    for mine, also, wide in zip(eager, traced, exact, strict=True):
        assert mine.dtype == also.dtype == kind
        scale = max(1.0, np.abs(wide.numpy()).max())
        np.testing.assert_allclose(mine.astype("float32").numpy(), wide.numpy(), rtol=2e-2, atol=2e-2 * scale)
        np.testing.assert_allclose(also.astype("f"), wide.numpy(), rtol=2e-2, atol=2e-2 * scale)


@pytest.mark.parametrize(
    "x", [np.float64([-3.0, -1e-9, 0.0, 1e-9, 2.0]), np.float16([-3, -0.5, 0, 2])], ids=["float64", "float16"]
)
@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_celu(x, alpha):
    exact = np.where(x >= 0, x.astype("d"), alpha * np.expm1(x.astype("d") / alpha))
    y = op.Celu(gk.tensor(x), alpha=alpha).numpy()
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, exact, rtol=1e-14 if x.dtype == "d" else 1e-3)
    if x.dtype == np.float64:
        slope = gk.grad(lambda t: op.Celu(t, alpha=alpha).sum())(gk.tensor(x)).numpy()
        np.testing.assert_allclose(slope, np.where(x >= 0, 1, np.exp(x / alpha)), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mod_at_its_edges(dtype):
    a = np.array([0.0, -0.0, np.inf, 3.0, -3.0, 3.0, -3.0, np.nan, 3.0, 0.0, -0.0, 4.0], dtype)
    b = np.array([-2.0, 2.0, 2.0, np.inf, np.inf, -np.inf, -np.inf, 1.0, 0.0, -np.inf, np.inf, -2.0], dtype)
    with np.errstate(all="ignore"):
        expected = np.mod(a, b)
    got = op.Mod(a, b).numpy()
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_shifts_of_every_width(bits, direction):
    for kind in ("int", "uint"):
        dtype = np.dtype(f"{kind}{bits}")
        limits = np.iinfo(dtype)
        x = np.array([limits.min, limits.max, 1, 5, limits.max // 3], dtype)
        y = np.array([0, 1, 3, bits - 1, bits], dtype)
        a, b = (m.ravel() for m in np.meshgrid(x, y))
        text = f"""<ir_version: 13, opset_import: ["": 28]> g ({kind}{bits}[n] a, {kind}{bits}[n] b) =>
            ({kind}{bits}[n] y) {{ y = BitShift<direction = "{direction}">(a, b) }}"""
        expected = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, {"a": a, "b": b})[0]
        np.testing.assert_array_equal(gk.run(onnx.parser.parse_model(text), {"a": a, "b": b})["y"], expected)
        if kind == "int":
            np.testing.assert_array_equal(op.BitShift(a, b, direction=direction).numpy(), expected)


def test_the_range_of_half_precision():
    y = op.Range(np.float16(0), np.float16(3000), np.float16(1))
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y.numpy(), np.arange(3000, dtype="f").astype("e"))
    assert op.Range(0.0, 3.0, 1.0, stash_type="float64").tolist() == [0, 1, 2]


REFUSALS = {
    "has no decay": lambda: op.LinearAttention(*narrow([QUERY, KEY, VALUE]), update_rule="gated", **GROUPS),
    "takes no beta": lambda: op.LinearAttention(
        *narrow([QUERY, KEY, VALUE, None, None, BETA]), update_rule="linear", **GROUPS),
    "an update rule": lambda: op.LinearAttention(*narrow([QUERY, KEY, VALUE]), update_rule="cubic", **GROUPS),
    "heads": lambda: op.LinearAttention(
        *narrow([QUERY, KEY, VALUE]), update_rule="linear", q_num_heads=3, kv_num_heads=2),
    "an activation": lambda: op.CausalConvWithState(*narrow([X, W]), activation="relu"),
    "unequal shapes": lambda: op.SwiGLU(np.ones((2, 3), "f"), np.ones((1, 3), "f")),
    "a mode": lambda: op.SpaceToDepth(np.ones((1, 1, 2, 2), "f"), blocksize=2, mode="RCD"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_refused_is_refused_at_its_line(what):
    with pytest.raises(OperatorError, match=r"test_newer.py"):
        REFUSALS[what]()


# Files


def parse(text, opset=28, preview=False):
    imports = f'"": {opset}' + (f', "{PREVIEW}": 1' if preview else "")
    return onnx.parser.parse_model(f"<ir_version: 13, opset_import: [{imports}]> {text}")


A, B = draw(2, 3).astype("f"), draw(2, 3).astype("f")


def test_names_metadata_and_functions_are_kept():
    model = parse(
        """g (float[n, 3] a, float[n, 3] b) => (float[n, 3] y, float[n, 3] z) <float[3] w = {1, 2, 3}> {
             [gate] y = local.twice(a, b)
             p = Mul(y, w)
             z = SwiGLU<alpha = 2.0>(p, b) }"""
    )
    function = onnx.parser.parse_function(
        """<opset_import: ["": 27], domain: "local"> twice (a, b) => (c) { d = Add(a, a) c = Mul(d, b) }"""
    )
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("local", 1))
    model.graph.node[2].metadata_props.add(key="where", value="here")
    read = read_model(model)
    assert read.opset_imports[""] == NEWEST_OPSET
    assert [v.name for v in read.graph.outputs] == ["y", "z"]
    assert list(read.graph.initializers) == ["w"]
    assert not read.functions
    made = [n for n in read.graph if n.metadata_props.get("where") == "here"]
    assert {n.op_type for n in made} == {"Mul", "Sigmoid"}
    p = 2 * A * B * np.float32([1, 2, 3])
    got = gk.run(model, {"a": A, "b": B})
    np.testing.assert_allclose(got["z"], p / (1 + np.exp(-2 * p)) * B, rtol=1e-5)


@pytest.mark.parametrize(("own", "function"), [(12, 28), (21, 28), (28, 18)])
def test_functions_of_another_opset(own, function):
    """The caller gives an attribute, and the axes are an attribute or an input by the opset."""
    model = parse("g (float[n, 3] a) => (float[n] y) { g = local.gate<alpha = 2.0>(a) y = Squeeze%s }" % (
        "<axes = [1]>(g)" if own < 13 else "(g, one)"), own)  # fmt: skip
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    gate = "SwiGLU<alpha: float = @alpha>(a, a)" if function > 26 else "Elu<alpha: float = @alpha>(a)"
    text = f"""<opset_import: ["": {function}], domain: "local"> gate <alpha> (a) => (c) {{
        b = {gate} c = ReduceMax<keepdims = 1>(b{", one" if function >= 18 else ""}) }}"""
    text = text.replace("one", "axis").replace("{\n", "{\n axis = Constant<value = int64[1] {1}>()\n", 1)
    model.functions.append(onnx.parser.parse_function(text))
    model.opset_import.append(onnx.helper.make_opsetid("local", 1))
    inner = A * A / (1 + np.exp(-2 * A)) if function > 26 else np.where(A > 0, A, 2 * np.expm1(A))
    np.testing.assert_allclose(gk.run(model, {"a": A})["y"], inner.max(axis=1), rtol=1e-5)


def test_inside_bodies():
    """Of If and Loop, with names from outside; and a Scan made there."""
    model = parse(
        """g (bool t, float[2, 3] a, float[2, 3] b, float[1, 2, 4] q) => (float[2, 3] y, float[1, 2, 4] z) {
             y = If (t) <then_branch = left () => (float[2, 3] u) { u = SwiGLU(a, b) },
                         else_branch = right () => (float[2, 3] v) { v = Mod(a, b) }>
             two = Constant<value = int64 {2}>()
             go = Constant<value = bool {1}>()
             z = Loop (two, go, q) <body = step (int64 i, bool c, float[1, 2, 4] s) => (bool d, float[1, 2, 4] o) {
                 d = Identity(c)
                 o, state = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(s, s, q) }> }"""
    )
    q = draw(1, 2, 4).astype("f")
    for t in (True, False):
        feeds = {"t": np.array(t), "a": A, "b": B, "q": q}
        expected = ReferenceEvaluator(model).run(None, feeds)
        for mine, theirs in zip(gk.run(model, feeds).values(), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
        for mine, theirs in zip(gk.load(model)(**feeds), expected, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4, atol=1e-6)
    whole = gk.optimizers.add_loss(model)
    assert "q_grad" in [v.name for v in add_gradients(whole, "loss", ["q"]).graph.output]


FLEX = """g (float[2, H, S, 4] q, float[2, G, T, 4] k, float[2, G, T, 3] v, float[1, 1, 1, 1] m) =>
  (float[2, H, S, 3] y) {
    y = ai.onnx.preview.FlexAttention(q, k, v) <scale = 0.6,
      score_mod = change (float[B, h, s, t] x) => (float[B, h, s, t] z) {
          large = Mul(x, m)
          z = Tanh(large) },
      prob_mod = change (float[B, h, s, t] p) => (float[B, h, s, t] z) { z = Mul(p, p) }> }"""


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
def test_flex_attention(heads, known):
    """Its graphs read a value from outside, and its heads may be known or not."""
    text = FLEX
    if known:
        text = text.replace("H,", f"{heads},").replace("G,", "2,")
    feeds = {"q": draw(2, heads, 3, 4), "k": draw(2, 2, 5, 4), "v": draw(2, 2, 5, 3), "m": draw(1, 1, 1, 1)}

    def attention(q, k, v, m):
        k, v = (gk.op.Concat(*[t[:, n // (heads // 2)][:, None] for n in range(heads)], axis=1) for t in (k, v))
        p = gk.op.Softmax(gk.op.Tanh((q @ k.mT) * 0.6 * m), axis=-1)
        return (p * p) @ v

    model = parse(text, 26, preview=True)
    small = {n: a.astype("f") for n, a in feeds.items()}
    expected = attention(*map(gk.tensor, feeds.values())).numpy()
    np.testing.assert_allclose(gk.run(model, small)["y"], expected, rtol=1e-4, atol=1e-5)
    loss = lambda *a: (attention(*a) ** 2).mean()
    whole = add_gradients(gk.optimizers.add_loss(model), "loss", list(feeds))
    got = gk.run(whole, small)
    for n, name in enumerate(feeds):
        exact = differences(loss, list(feeds.values()), n, 1e-6)
        np.testing.assert_allclose(got[f"{name}_grad"], exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("opset", [25, 26])
def test_swish_where_the_runtime_has_no_body_for_it(opset):
    model = parse("g (float[n, 3] a) => (float[n, 3] y) { y = Swish<alpha = 1.5>(a) }", opset)
    np.testing.assert_allclose(gk.run(model, {"a": A})["y"], A / (1 + np.exp(-1.5 * A)), rtol=1e-5)
    kept = parse("g (float[n, 3] a) => (float[n, 3] y) { y = Swish<alpha = 1.5>(a) }", 24)
    assert [n.op_type for n in read_model(kept).graph] == ["Swish"]
    changed = [n.op_type for n in change_opset(ir.from_proto(kept), opset).graph]
    assert changed == ["Constant", "Mul", "Sigmoid", "Mul"]


def test_swish_in_a_trace_that_another_operator_raises():
    model = gk.trace(lambda x: op.Swish(op.CumProd(x, np.int64(1))), A)
    assert model.opset_imports[""] == 26
    assert "Swish" not in [n.op_type for n in model.graph]
    p = np.cumprod(A, axis=1)
    np.testing.assert_allclose(gk.run(model, [A])["output"], p / (1 + np.exp(-p)), rtol=1e-5)


def test_to_an_older_opset_still():
    model = read_model(parse("g (float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { y = SwiGLU(a, b) }"))
    lower_model(model, 11)
    np.testing.assert_allclose(gk.run(model, {"a": A, "b": B})["y"], A / (1 + np.exp(-A)) * B, rtol=1e-5)


def test_all_that_no_runtime_can_say_is_named_at_once():
    model = parse(
        """g (float[n] x, float[n] a) => (float[n] y, float[n] z) {
             [first] q = Cast<to = 27>(x)
             y = Cast<to = 1>(q)
             [second] r = Cast<to = 28>(x)
             z = Cast<to = 1>(r) }"""
    )
    with pytest.raises(ModelFileError, match=r"(?s)float6e2m3.*float6e3m2") as caught:
        read_model(model)
    assert "'first'" in str(caught.value) and "'second'" in str(caught.value)


def test_of_unknown_type():
    model = parse("g (float[n] x) => (float[n] y) { z = acme.Something(x) y = Mod(z, z) }")
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    with pytest.raises(ModelFileError, match=r"the type of its input 'z' is not known"):
        read_model(model)


def test_the_model_that_is_lent_is_not_changed():
    model = ir.from_proto(parse("g (float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { y = SwiGLU(a, b) }"))
    gk.run(model, {"a": A, "b": B})
    assert [n.op_type for n in model.graph] == ["SwiGLU"] and model.opset_imports[""] == 28


def test_every_change_is_written_out_or_of_types_alone():
    changed = {
        (s.name, s.since_version)
        for s in onnx.defs.get_all_schemas_with_history()
        if s.domain == "" and NEWEST_OPSET < s.since_version <= READABLE_OPSET
    }
    table = {(name, version) for (name, domain), (version, _) in NEWER.items() if not domain and version > NEWEST_OPSET}
    assert changed == BEYOND | table
