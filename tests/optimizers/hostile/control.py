"""Bodies and functions: outer names, names that meet, branches that return what is not theirs, attributes by reference."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.optimizers.hostile.cases import case, f32, model, node, normal, parsed, tensor, value

X = np.array([1, -2, 3], np.float32)
YES, NO = np.array(True), np.array(False)
IN, OUT, FLAG = value("x", [3]), value("y", [3]), value("c", [], TensorProto.BOOL)


def branch(name: str, nodes, output: str, initializers=()) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [value(output, [3])], list(initializers))


def choice(
    then_branch, else_branch, *after, before=(), inputs=(IN, FLAG), initializers=(), outputs=(OUT,), result="y"
) -> onnx.ModelProto:
    chooser = node("If", ["c"], [result], then_branch=then_branch, else_branch=else_branch)
    return model([*before, chooser, *after], inputs, outputs, initializers)


def named(name: str, number: float) -> onnx.GraphProto:
    return branch(
        name,
        [node("Exp", ["w"], ["e"]), node("Add", ["x", "e"], ["r"])],
        "r",
        [tensor("w", np.full(3, number, np.float32))],
    )


def held(name: str, number: float) -> onnx.GraphProto:
    return branch(name, [], f"o{name}", [tensor(f"o{name}", np.full(3, number, np.float32))])


def nested(depth: int) -> onnx.GraphProto:
    if not depth:
        return branch("leaf", [node("Add", ["x", "k"], ["leaf"])], "leaf")
    inner = node(
        "If",
        ["c"],
        [f"r{depth}"],
        then_branch=nested(depth - 1),
        else_branch=branch("e", [node("Neg", ["x"], ["n"])], "n"),
    )
    return branch(f"b{depth}", [inner], f"r{depth}")


FUNCTIONS = """
<domain: "here", opset_import: ["": 17]> twice (a) => (b) {t = Identity(a) u = Add(t, t) b = Identity(u)}
<domain: "here", opset_import: ["": 17, "here": 1]> fourfold (a) => (b) {t = here.twice(a) b = here.twice(t)}
<domain: "here", opset_import: ["": 17]> never (a) => (b) {b = Neg(a)}
"""
ATTRIBUTE = """
<domain: "here", opset_import: ["": 17]> cut <to> (a) => (b) {t = Cast<to: int = @to>(a) u = Identity(t) b = Cast<to=1>(u)}
"""
AXIS = """
<domain: "here", opset_import: ["": 17]> soft <axis> (a) => (b) {t = Identity(a) b = Softmax<axis: int = @axis>(t)}
"""
OTHER_OPSET = """
<domain: "here", opset_import: ["": 12]> old (a) => (b) {t = Unsqueeze<axes=[0]>(a) u = Squeeze<axes=[0]>(t) b = Neg(u)}
"""
DRAWS = """
<domain: "here", opset_import: ["": 17]> noise (a) => (b) {b = RandomNormalLike(a)}
"""
HERE = ', "here": 1'
LOOP = "g (float[3] x, int64 n, bool c) => (float[3] y) "
SCAN_BODY = "<body = b (float s, float u) => (float t, float v) {t = Add(s, u) w = Identity(t) v = Mul(w, k)}, num_scan_inputs=1>"

# fmt: off
CASES = [
    # If
    case("branches_that_are_constants", choice(held("a", 1), held("b", 2)), {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("known_branch_that_is_a_constant", choice(held("a", 1), held("b", 2), node("Add", ["x", "z"], ["y"]), inputs=(IN,), initializers=[tensor("c", True)], result="z"), {"x": X}, gone="If"),
    case("known_branch_that_gives_out_an_outer_value", choice(branch("t", [node("Identity", ["x"], ["r"])], "r"), held("b", 2), inputs=(IN,), initializers=[tensor("c", True)]), {"x": X}, gone="If"),
    case("known_branch_that_gives_out_another_output", choice(branch("t", [node("Identity", ["z"], ["r"])], "r"), held("b", 2), before=[node("Neg", ["x"], ["z"])], inputs=(IN,), initializers=[tensor("c", True)],
         outputs=[OUT, value("z", [3])]), {"x": X}, gone="If"),
    case("siblings_with_constants_of_one_name", choice(named("t", 1), named("f", 2)), {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("known_ifs_whose_names_meet", model([node("If", ["yes"], ["a"], then_branch=named("t", 1), else_branch=named("f", 2)), node("If", ["no"], ["b"], then_branch=named("t", 3), else_branch=named("f", 4)),
         node("Sub", ["a", "b"], ["y"])], [IN], [OUT], [tensor("yes", True), tensor("no", False)]), {"x": X}, gone="If", tolerance=1e-6),
    case("known_if_beside_an_unknown_one", model([node("If", ["yes"], ["a"], then_branch=named("t", 1), else_branch=named("f", 2)), node("If", ["c"], ["b"], then_branch=named("t", 3), else_branch=named("f", 4)),
         node("Sub", ["a", "b"], ["y"])], [IN, FLAG], [OUT], [tensor("yes", True)]), {"x": X, "c": YES}, {"x": X, "c": NO}, tolerance=1e-6),
    case("if_in_if_in_if", choice(nested(8), held("b", 2), initializers=[tensor("k", X)]), {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("if_of_a_known_if", "g (float[3] x) => (float[3] y) <bool t = {1}> {b = If(t) <then_branch = p () => (bool r) {r = Constant<value = bool {0}>()}, else_branch = q () => (bool s) {s = Constant<value = bool {1}>()}> "
         "y = If(b) <then_branch = u () => (float[3] v) {v = Neg(x)}, else_branch = w () => (float[3] z) {z = Abs(x)}>}", {"x": X}, expected={"y": np.abs(X)}),
    case("captured_by_two_levels", "g (float[3] x, bool c) => (float[3] y) {o = Identity(x) y = If(c) <then_branch = t () => (float[3] r) {i = Identity(o) r = If(c) <then_branch = u () => (float[3] q) {q = Add(i, o)}, "
         "else_branch = v () => (float[3] q2) {q2 = Neg(i)}>}, else_branch = e () => (float[3] r2) {r2 = Neg(o)}>}", {"x": X, "c": YES}, {"x": X, "c": NO}, gone="Identity"),
    case("same_in_body_and_around", "g (float[3] x, bool c) => (float[3] y) {e = Exp(x) y = If(c) <then_branch = t () => (float[3] r) {r = Exp(x)}, else_branch = f () => (float[3] r2) {a = Exp(x) r2 = Add(a, e)}>}",
         {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("same_in_both_branches", "g (float[3] x, bool c) => (float[3] y) {y = If(c) <then_branch = t () => (float[3] r) {a = Exp(x) r = Neg(a)}, else_branch = f () => (float[3] r2) {b = Exp(x) r2 = Abs(b)}>}",
         {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("constants_that_only_branches_read", choice(branch("t", [node("Squeeze", ["v", "ax"], ["r"])], "r"), branch("e", [node("Reshape", ["v", "flat"], ["q"])], "q"), before=[node("Unsqueeze", ["x", "ax"], ["v"])],
         initializers=[tensor("ax", [0], np.int64), tensor("flat", [-1], np.int64)]), {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("branches_of_other_shapes", "g (float[2,3] x, bool c) => (float[M] y) <int64[1] k = {0}, int64[1] f = {-1}> {s = If(c) <then_branch = t () => (float[a,b] r) {r = Identity(x)}, else_branch = e () => (float[p] q) {q = ReduceSum<keepdims=0>(x, k)}> "
         "y = Reshape(s, f)}", {"x": normal(2, 3), "c": YES}, {"x": normal(2, 3), "c": NO}, tolerance=1e-6),
    case("squeeze_if_one_today", "g (float[A,B] x) => (float[M] y) <int64 i = {0}, int64 o = {1}, int64[1] z = {0}, int64[1] f = {-1}> {s = Shape(x) d = Gather(s, i) e = Equal(d, o) q = If(e) "
         "<then_branch = t () => (float[n] r) {r = Squeeze(x, z)}, else_branch = u () => (float[p,q] w) {w = Identity(x)}> y = Reshape(q, f)}", {"x": normal(1, 3)}, {"x": normal(2, 3)}, kept="If"),
    case("a_draw_in_a_branch", "g (float[3] x, bool c) => (float[3] y) {y = If(c) <then_branch = t () => (float[3] r) {a = RandomNormalLike(x) b = RandomNormalLike(x) r = Sub(a, b)}, else_branch = f () => (float[3] q) {q = Neg(x)}>}",
         {"x": X, "c": YES}, drawn="y", check=lambda runs: bool(np.any(runs[0]["y"]))),
    case("unused_results_of_an_if", "g (float[3] x, bool c) => (float[3] y) {a, b = If(c) <then_branch = t () => (float[3] r, float[3] r2) {r = Neg(x) r2 = Exp(x)}, else_branch = f () => (float[3] q, float[3] q2) {q = Abs(x) q2 = Exp(x)}> y = Identity(a)}",
         {"x": X, "c": YES}, {"x": X, "c": NO}),
    case("condition_of_one_element", "g (float[3] x) => (float[3] y) <bool[1] c = {0}> {y = If(c) <then_branch = t () => (float[3] r) {r = Neg(x)}, else_branch = f () => (float[3] q) {q = Abs(x)}>}", {"x": X}, expected={"y": np.abs(X)}, gone="If"),
    # Loop and Scan
    case("loop_with_outer_constants", LOOP + "<float[3] k = {1,2,3}, float[3] l = {1,1,1}> {m = Mul(k, l) y = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u) {e = Identity(d) j = Add(m, l) u = Add(v, j)}>}",
         {"x": X, "n": np.array(3), "c": YES}, {"x": X, "n": np.array(0), "c": YES}, {"x": X, "n": np.array(3), "c": NO}),
    case("loop_that_runs_never", "g (float[3] x) => (float[3] y) <int64 n = {0}, bool c = {1}> {y = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u) {e = Identity(d) u = Exp(v)}>}", {"x": X}, expected={"y": X}),
    case("loop_that_runs_once", "g (float[3] x) => (float[3] y) <int64 n = {1}, bool c = {1}> {y = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u) {e = Identity(d) f = Cast<to=1>(i) u = Add(v, f)}>}", {"x": X}, expected={"y": X}),
    case("loop_that_stops_itself", "g (float x) => (float y) <int64 n = {100}, bool c = {1}, float t = {20}> {y = Loop(n, c, x) <body = b (int64 i, bool d, float v) => (bool e, float u) {u = Add(v, v) e = Less(u, t)}>}", {"x": np.float32(1)}, expected={"y": np.float32(32).reshape(())}),
    case("loop_whose_state_grows", "g (float[N] x) => (float[M] y) <int64 n = {3}, bool c = {1}> {y = Loop(n, c, x) <body = b (int64 i, bool d, float[K] v) => (bool e, float[L] u) {e = Identity(d) s = Shape(v) r = Reshape(v, s) u = Concat<axis=0>(r, x)}>}",
         {"x": X}, expected={"y": np.tile(X, 4)}),
    case("loop_with_stacked_outputs", LOOP.replace("(float[3] y)", "(float[3] y, float[K,3] z)") + "{y, z = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u, float[3] w) {e = Identity(d) a = Identity(v) u = Add(a, x) w = Identity(v)}>}",
         {"x": X, "n": np.array(2), "c": YES}, {"x": X, "n": np.array(0), "c": YES}),
    case("loop_state_that_stays", LOOP + "{y = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u) {e = Identity(d) u = Identity(v)}>}", {"x": X, "n": np.array(2), "c": YES}),
    case("loop_states_that_swap", LOOP + "{a = Neg(x) p, y = Loop(n, c, x, a) <body = b (int64 i, bool d, float[3] v, float[3] w) => (bool e, float[3] u, float[3] s) {e = Identity(d) u = Identity(w) s = Identity(v)}>}",
         {"x": X, "n": np.array(1), "c": YES}, {"x": X, "n": np.array(2), "c": YES}),
    case("loop_without_a_count", "g (float x) => (float y) <bool c = {1}, float t = {20}> {y = Loop( , c, x) <body = b (int64 i, bool d, float v) => (bool e, float u) {u = Add(v, v) e = Less(u, t)}>}", {"x": np.float32(1)}),
    case("a_draw_in_a_loop", "g (float[3] x) => (float[3] y, float[K,3] z) <int64 n = {3}, bool c = {1}> {y, z = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u, float[3] w) {e = Identity(d) w = RandomNormalLike(x) u = Add(v, w)}>}",
         {"x": X}, drawn="y z", check=lambda runs: not np.array_equal(runs[0]["z"][0], runs[0]["z"][1])),
    case("loop_with_a_draw_that_nobody_reads", "g (float[3] x) => (float[3] y) <int64 n = {2}, bool c = {1}> {y = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool e, float[3] u) {e = Identity(d) w = RandomNormalLike(v) z = Neg(w) u = Exp(v)}>}", {"x": X}),
    case("scan_with_outer_constants", "g (float[4] x) => (float y, float[4] z) <float i = {1}, float k = {2}> {y, z = Scan(i, x) " + SCAN_BODY + "}", {"x": f32(1, 2, 3, 4)}, expected={"y": np.float32(11).reshape(()), "z": f32(4, 8, 14, 22)}),
    case("scan_backwards", "g (float[4] x) => (float y, float[4] z) <float i = {1}, float k = {2}> {y, z = Scan(i, x) " + SCAN_BODY.replace("num_scan", "scan_input_directions=[1], num_scan") + "}", {"x": f32(1, 2, 3, 4)}),
    case("loop_over_a_sequence", "g (float[3] x) => (float[M] y) <int64 n = {2}, bool c = {1}> {s = SequenceEmpty() t = Loop(n, c, s) <body = b (int64 i, bool d, seq(float[3]) v) => (bool e, seq(float[3]) u) {e = Identity(d) u = SequenceInsert(v, x)}> y = ConcatFromSequence<axis=0>(t)}",
         {"x": X}),
    # Functions
    case("functions_within_functions", "g (float[N] x) => (float[N] y) {t = here.fourfold(x) u = Identity(t) y = Neg(u)}" + FUNCTIONS, {"x": X}, imports=HERE),
    case("function_with_an_attribute", "g (float[N] x) => (float[N] y) {t = here.cut<to=6>(x) u = here.cut<to=11>(x) y = Sub(t, u)}" + ATTRIBUTE, {"x": f32(-1.5, 2.7)}, imports=HERE, expected={"y": f32(0.5, -0.7)}),
    case("function_called_with_other_attributes", "g (float[2,3] x) => (float[2,3] y) {t = here.soft<axis=0>(x) u = here.soft<axis=1>(x) y = Sub(t, u)}" + AXIS, {"x": normal(2, 3)}, imports=HERE, tolerance=1e-6),
    case("function_of_another_opset", "g (float[N] x) => (float[N] y) {t = here.old(x) y = Abs(t)}" + OTHER_OPSET, loads=False, imports=HERE),
    case("function_that_draws", "g (float[64] x) => (float[64] y) {t = here.noise(x) u = here.noise(x) y = Sub(t, u)}" + DRAWS, {"x": normal(64)}, drawn="y", imports=HERE, check=lambda runs: bool(np.any(runs[0]["y"]))),
    case("function_called_with_other_shapes", "g (float[2,3] x, float[3] z) => (float[2,3] y, float[3] w) {y = here.twice(x) w = here.twice(z)}" + FUNCTIONS, {"x": normal(2, 3), "z": X}, imports=HERE),
    case("function_named_like_an_operator", 'g (float[N] x) => (float[N] y) {t = here.Identity(x) y = Abs(t)} <domain: "here", opset_import: ["": 17]> Identity (a) => (b) {b = Exp(a)}', {"x": X}, imports=HERE),
    case("function_whose_names_meet_the_graphs", "g (float[N] t) => (float[N] b) {a = Exp(t) u = here.twice(a) b = Sub(u, a)}" + FUNCTIONS, {"t": X}, imports=HERE),
    case("function_in_a_branch", "g (float[3] x, bool c) => (float[3] y) {y = If(c) <then_branch = p () => (float[3] r) {r = here.twice(x)}, else_branch = q () => (float[3] s) {s = Neg(x)}>}" + FUNCTIONS, {"x": X, "c": YES}, {"x": X, "c": NO}, imports=HERE),
    case("function_that_is_only_a_name", 'g (float[N] x) => (float[N] y) {t = here.same(x) y = Abs(t)} <domain: "here", opset_import: ["": 17]> same (a) => (b) {b = Identity(a)}', {"x": X}, imports=HERE),
    case("function_with_constants", 'g (float[N] x) => (float[N] y) {t = here.more(x) y = Abs(t)} <domain: "here", opset_import: ["": 17]> more (a) => (b) {k = Constant<value_float=2.0>() l = Constant<value_float=3.0>() m = Mul(k, l) b = Add(a, m)}', {"x": X}, imports=HERE),
    case("branch_in_a_function", 'g (float[3] x, bool f) => (float[3] y) {t = here.pick(f, x) y = Abs(t)} <domain: "here", opset_import: ["": 17]> pick (f, a) => (b) {b = If(f) <then_branch = p () => (float[3] r) {i = Identity(a) r = Exp(i)}, else_branch = q () => (float[3] s) {s = Neg(a)}>}',
         {"x": X, "f": YES}, {"x": X, "f": NO}, imports=HERE),
    case("function_parameter_is_not_unused", parsed('g (float[N] x, float[N] z) => (float[N] y) {y = here.first(x, z)} <domain: "here", opset_import: ["": 17]> first (a, b) => (c) {c = Neg(a)}', imports=HERE), {"x": X, "z": X}),
]
# fmt: on
