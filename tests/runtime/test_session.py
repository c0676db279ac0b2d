"""Running models: what may be fed, what is refused and how it is said, and which device is asked for."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import DeviceError, GraphkitError, InputError, ModelFileError
from graphkit.modelfile import read_model, write_model
from graphkit.runtime import Session, available_devices, devices, run, session


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g ' + text)


NEG = model("(float[N, 2] x) => (float[N, 2] y) {y = Neg(x)}")
ADD = model("(float[N] ids, float[N] mask) => (float[N] y) {y = Add(ids, mask)}")
STATIC = model("(float[2, 3] pixels) => (float[2, 3] y) {y = Neg(pixels)}")
SCALAR = model("(float x, int64 n) => (float y) {f = Cast<to=1>(n) y = Mul(x, f)}")
TEXT = model("(string[N] words) => (string[N] y) {y = Identity(words)}")
DEFAULT = model("(float[N] x, float[2] w = {1, 2}) => (float[N] y) {y = Add(x, w)}")
CONSTANT = model("(float[N] x) => (float[N] y) <float[2] w = {1, 2}> {y = Add(x, w)}")
SEQUENCE = model("(seq(float[N]) xs, int64 i) => (float[M] y) {y = SequenceAt(xs, i)}")
OPTIONAL = model("(optional(float[N]) x) => (bool y) {y = OptionalHasElement(x)}")

X = np.array([[1, 2], [3, 4]], "float32")

FITS: dict[str, tuple[onnx.ModelProto, Any, Any]] = {
    "by name": (NEG, {"x": X}, -X),
    "positional": (NEG, [X], -X),
    "the one input": (NEG, X, -X),
    "Python lists": (NEG, {"x": [[1, 2], [3, 4.5]]}, np.array([[-1, -2], [-3, -4.5]], "f")),
    "big-endian": (NEG, {"x": X.astype(">f4")}, -X),
    "Fortran order": (NEG, {"x": np.asfortranarray(X)}, -X),
    "not contiguous": (NEG, {"x": np.repeat(X, 2, axis=0)[::2]}, -X),
    "reversed": (NEG, {"x": X[::-1]}, -X[::-1]),
    "read only": (NEG, {"x": np.broadcast_to(X[:1], (3, 2))}, -np.broadcast_to(X[:1], (3, 2))),
    "NaN": (NEG, {"x": X * np.float32("nan")}, X * np.float32("nan")),
    "an empty batch": (NEG, {"x": X[:0]}, X[:0]),
    "an empty list": (ADD, {"ids": [], "mask": []}, X[0, :0]),
    "rank 0": (SCALAR, {"x": np.array(2, "f"), "n": np.array(3)}, np.array(6, "f")),
    "Python scalars": (SCALAR, [2.5, 2], np.array(5, "f")),
    "numpy scalars": (SCALAR, [np.float32(2.5), np.int64(2)], np.array(5, "f")),
    "an integral float": (SCALAR, [2.5, 2.0], np.array(5, "f")),
    "a default left": (DEFAULT, {"x": [1, 1]}, np.array([2, 3], "f")),
    "a default overridden": (DEFAULT, {"x": [1, 1], "w": [5, 5]}, np.array([6, 6], "f")),
    "text": (
        TEXT,
        {"words": np.array(["Käse", "", "\U0001f40d"], object)},
        np.array(["Käse", "", "\U0001f40d"], object),
    ),
    "fixed-width text": (TEXT, {"words": np.array(["ab", "Käse"])}, np.array(["ab", "Käse"], object)),
    "UTF-8 bytes": (TEXT, {"words": np.array(["Käse".encode()])}, np.array(["Käse"], object)),
    "a list of text": (TEXT, {"words": ["a", "b"]}, np.array(["a", "b"], object)),
    "a sequence": (SEQUENCE, {"xs": [[1, 2], np.ones(3, "f")], "i": 1}, np.ones(3, "f")),
    "no optional": (OPTIONAL, {}, np.array(False)),
    "None for an optional": (OPTIONAL, {"x": None}, np.array(False)),
    "an optional": (OPTIONAL, {"x": [1.0]}, np.array(True)),
}


@pytest.mark.parametrize("name", FITS)
def test_what_fits_runs(name: str) -> None:
    proto, feeds, expected = FITS[name]
    (got,) = run(proto, feeds).values()
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


REFUSED: dict[str, tuple[onnx.ModelProto, Any, list[str]]] = {
    "float64": (NEG, {"x": np.ones((2, 2))}, ["'x'", "float32[N, 2]", "float64[2, 2]", ".astype('float32')"]),
    "int64 for float32": (NEG, {"x": np.ones((2, 2), int)}, ["'x'", "float32", "int64"]),
    "float16": (NEG, {"x": X.astype("float16")}, ["'x'", "float32", "float16"]),
    "big-endian float64": (NEG, {"x": X.astype(">f8")}, ["'x'", "float32", "float64"]),
    "float64 rows in a list": (NEG, {"x": [np.ones(2), np.ones(2)]}, ["'x'", "float64"]),
    "text for numbers": (NEG, {"x": [["a", "b"]]}, ["'x'", "text"]),
    "objects": (NEG, {"x": np.array([[None, 1]], object)}, ["'x'", "Python objects"]),
    "None": (NEG, {"x": None}, ["'x'", "None"]),
    "rank": (NEG, {"x": X[0]}, ["'x'", "float32[2]", "rank 1", "rank 2"]),
    "a static dimension": (STATIC, {"pixels": np.ones((2, 4), "f")}, ["'pixels'", "dimension 1 is 4", "expected 3"]),
    "two sizes of one dimension": (ADD, [[1, 2], [1, 2, 3]], ["'N'", "2 in input 'ids'", "3 in input 'mask'"]),
    "missing and unknown": (
        ADD,
        {"ids": [1], "msk": [1]},
        ["'mask'", "'msk'", "did you mean 'mask'", "ids: float32[N]"],
    ),
    "several missing": (ADD, {}, ["'ids', 'mask'"]),
    "a constant": (CONSTANT, {"x": [1, 2], "w": [1, 2]}, ["'w' is a constant"]),
    "too many": (NEG, [X, X], ["got 2 inputs", "x: float32[N, 2]"]),
    "ragged": (NEG, {"x": [[1, 2], [3]]}, ["'x'", "no array"]),
    "a fraction for an integer": (SCALAR, [1.0, 1.5], ["'n'", "int64", "1.5"]),
    "too large for float16": (model("(float16[N] x) => (float16[N] y) {y = Neg(x)}"), [[1e6]], ["'x'", "float16"]),
    "too large for int8": (model("(int8[N] x) => (int8[N] y) {y = Neg(x)}"), [[1, 300]], ["'x'", "int8", "300"]),
    "rank 1 for rank 0": (SCALAR, [1.0, [1]], ["'n'", "rank 1", "rank 0"]),
    "bytes that are no text": (TEXT, [np.array([b"\xff"])], ["'words'", "UTF-8"]),
    "numbers for text": (TEXT, [np.array([1, 2])], ["'words'", "string[N]", "int64"]),
    "objects that are no text": (TEXT, [np.array(["a", 1], object)], ["'words'", "1 (int)"]),
    "an array for a sequence": (SEQUENCE, {"xs": X, "i": 0}, ["'xs'", "list of arrays"]),
    "a wrong element": (SEQUENCE, {"xs": [np.ones(2)], "i": 0}, ["'xs'", "float64"]),
    "everything at once": (ADD, {"ids": np.ones(2), "mask": np.ones((2, 2), "f")}, ["'ids'", "'mask'"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    proto, feeds, words = REFUSED[name]
    with pytest.raises(InputError) as caught:
        run(proto, feeds)
    for word in words:
        assert word in str(caught.value)


def test_check_finite_names_the_input_and_the_place() -> None:
    with pytest.raises(InputError, match=r"'mask' holds 1 NaN and 1 infinite values, the first at \[1\]"):
        run(ADD, [[1, 2, 3], [1, np.nan, np.inf]], check_finite=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz"])
def test_element_types_that_numpy_lacks(dtype: str) -> None:
    onnx_name = dtype.replace("_", "")
    x = np.array([[1, 2], [3, 4]], getattr(ml_dtypes, dtype))
    proto = model(f"({onnx_name}[N, 2] x) => ({onnx_name}[N, 2] y) {{y = Identity(x)}}")
    for feed in (x, x[::-1], x[:0]):
        y = run(proto, {"x": feed})["y"]
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.astype("f"), feed.astype("f"))
    with pytest.raises(InputError, match=dtype):
        run(proto, {"x": x.astype("f")})


def test_lists_beside_element_types_that_numpy_lacks_are_refused() -> None:
    proto = model(
        "(bfloat16[4] x, float[4] z) => (bfloat16[4] w, seq(float[2]) y) <int64 s = {2}> "
        "{w = Identity(x) y = SplitToSequence<axis = 0>(z, s)}"
    )
    with pytest.raises(GraphkitError, match=r"mixes lists or optional values \('y'\)"):
        run(proto, [[1, 2, 3, 4], [1, 2, 3, 4]])
    assert list(run(proto, [[1, 2, 3, 4], [1, 2, 3, 4]], outputs=["w"])) == ["w"]


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_four_bit_types(dtype: str) -> None:
    values = np.array([1, 2, 7], getattr(ml_dtypes, dtype))
    proto = model(f"({dtype}[N] x, float s) => (float[N] y) {{y = DequantizeLinear(x, s)}}")
    np.testing.assert_array_equal(run(proto, [values, 2])["y"], np.array([2, 4, 14], "f"))
    back = model(f"(float[N] x, float s, {dtype} z) => ({dtype}[N] y) {{y = QuantizeLinear(x, s, z)}}")
    got = run(back, [[2.0, 4.0, 14.0], 2, 0])["y"]
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got.astype(int), values.astype(int))


def test_outputs_are_chosen_by_name() -> None:
    two = model("(float[N] x) => (float[N] negative, float[N] absolute) {negative = Neg(x) absolute = Abs(x)}")
    assert list(run(two, [[-1.0]])) == ["negative", "absolute"]
    assert list(run(two, [[-1.0]], outputs=["absolute"])) == ["absolute"]
    with pytest.raises(InputError, match=r"no output 'absolut'\. Did you mean 'absolute'"):
        run(two, [[-1.0]], outputs=["absolut"])


def test_a_session_tells_its_inputs_and_outputs() -> None:
    ready = Session(DEFAULT, threads=1)
    assert [str(one) for one in (*ready.inputs, *ready.outputs)] == ["x: float32[N]", "w: float32[2]", "y: float32[N]"]
    assert [one.required for one in ready.inputs] == [True, False]
    assert "on cpu" in repr(ready)
    with pytest.raises(InputError, match="threads is a number of threads"):
        Session(DEFAULT, threads=0)


def test_failures_of_the_runtime_name_the_node(capfd: pytest.CaptureFixture[str]) -> None:
    proto = model("(float[N] x, float[M] z) => (float[K] y) {[plus] y = Add(x, z)}")
    with pytest.raises(
        GraphkitError, match=r"node 'plus' \(Add\), which makes 'y', failed: Attempting to broadcast"
    ) as caught:
        run(proto, [[1, 2], [1, 2, 3]])
    assert "onnxruntime" not in str(caught.value)
    unnamed = model("(float[N, 3] x) => (float[N, M] y) <int64[2] s = {0, -1}> {y = Reshape(x, s)}")
    with pytest.raises(GraphkitError, match=r"Reshape node without a name, which makes 'y'.*'x' has no elements"):
        run(unnamed, [X[:0, :1].repeat(3, axis=1)])
    assert capfd.readouterr().err == ""


UNLOADABLE = {
    "unknown operator": (
        "(float[N] x) => (float[N] y) {[first] y = Cnov(x)}",
        ["Cnov", "'first'", "Did you mean 'Conv'"],
    ),
    "operator of a newer opset": ("(float[N] x) => (float[N] y) {y = Swish(x)}", ["Swish", "opset 21", "opset 24"]),
    "no kernel": ("(bfloat16[N] x) => (bfloat16[N] y) {[d] y = Mul(x, x)}", ["Mul", "'d'", "no kernel"]),
    "not connected": ("(float[N] x) => (float[N] y) {y = Add(x, z)}", ["'z'"]),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_models_the_runtime_cannot_load(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    text, words = UNLOADABLE[name]
    with pytest.raises(ModelFileError) as caught:
        run(model(text), [[1.0]])
    for word in words:
        assert word in str(caught.value).replace('"', "'").replace("input: z", "'z'").replace("(z)", "'z'")
    assert capfd.readouterr().err == ""


def affine(size: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", size])],
        [numpy_helper.from_array(np.arange(3 * size, dtype="f").reshape(3, size), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=14)


def test_every_kind_of_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, x = affine(1000), np.ones((2, 3), "f")
    expected = x @ numpy_helper.to_array(proto.graph.initializer[0])
    embedded, outside = tmp_path / "a.onnx", tmp_path / "b.onnx"
    embedded.write_bytes(proto.SerializeToString())  # IR 14, which the runtime by itself refuses
    write_model(proto, outside, external_above=0)
    loaded = ir.from_proto(proto)
    for source in (proto, loaded, embedded, str(outside), read_model(outside)):
        np.testing.assert_array_equal(run(source, x)["y"], expected)
    assert loaded.ir_version == 14
    monkeypatch.setattr(session, "_INLINE_LIMIT", 100)
    np.testing.assert_array_equal(run(proto, x)["y"], expected)


BROKEN_BY_OPTIMIZATIONS = {
    "zero padding before MaxPool": (
        "(float[1, 1, 4, 4] x) => (float[1, 1, 5, 5] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> "
        "{q = Pad(x, p) y = MaxPool<kernel_shape = [2, 2]>(q)}",
        -np.ones((1, 1, 4, 4), "f"),
    ),
    "float64 Relu and Clip": (
        "(double[3] x) => (double[3] y) <double low = {-1}, double high = {6}> {a = Relu(x) y = Clip(a, low, high)}",
        np.array([-2.0, 3.0, 9.0]),
    ),
    "a mean that broadcasts along another axis": (
        """(float[4, 4] x) => (float[4, 4] y)
        <int64[1] a = {-1}, float e = {0.001}, float two = {2}, float[4] s = {1, 2, 3, 4}, float[4] b = {1, 1, 1, 1}> {
        m = ReduceMean<keepdims = 0>(x, a) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<keepdims = 0>(q, a)
        w = Add(v, e) z = Sqrt(w) n = Div(d, z) k = Mul(n, s) y = Add(k, b)}""",
        np.arange(16, dtype="f").reshape(4, 4) ** 2,
    ),
}


@pytest.mark.parametrize("name", BROKEN_BY_OPTIMIZATIONS)
def test_optimizations_that_break_a_model_are_left_out(name: str) -> None:
    text, x = BROKEN_BY_OPTIMIZATIONS[name]
    expected = run(model(text), x, optimizations=False)["y"]
    np.testing.assert_allclose(run(model(text), x)["y"], expected, rtol=1e-5)


def test_slow_fusions_are_left_out(tmp_path: Path) -> None:
    """Add and LayerNormalization stay two operators: the fused kernel is several times slower on the CPU."""
    proto = model(
        "(float[N, 8, 64] x, float[N, 8, 64] r) => (float[N, 8, 64] y) <float[64] s, float[64] b> "
        "{a = Add(x, r) y = LayerNormalization<axis=-1>(a, s, b)}"
    )
    for name in ("s", "b"):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(64, "f"), name))

    def optimized(disabled: list[str]) -> set[str]:
        options = session._options(None, True)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )
        return {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}

    assert "SkipLayerNormalization" in optimized([])
    assert "SkipLayerNormalization" not in optimized(list(session._SLOW_FUSIONS))


# Devices


def test_devices_by_name() -> None:
    assert available_devices()[0] == "cpu"
    for name in ("tpu", "cpu:1", "cuda:x", "", None, "gpu"):
        with pytest.raises(DeviceError, match="write 'cpu', 'cuda', 'cuda:1' or 'auto'"):
            run(NEG, X, device=name)  # type: ignore[arg-type]  # the mistake under test


needs_no_cuda = pytest.mark.skipif(devices.cuda_problem() is None, reason="CUDA starts here")


@needs_no_cuda
def test_cuda_asked_for_and_absent_is_an_error_that_says_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeviceError, match=r"cuda:0 is not available: .*(lib|provider).*device='cpu'"):
        run(NEG, X, device="cuda")
    with pytest.raises(DeviceError, match="cuda:1 is not available"):
        Session(NEG, device="cuda:1")
    assert Session(NEG, device="auto").device == "cpu"
    assert capfd.readouterr() == ("", "")


def test_a_build_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=r"no CUDA provider \(it has CPU\)\. Install onnxruntime-gpu"):
        run(NEG, X, device="cuda")


class FakeSession:
    """Stands for ONNX Runtime's session where there is no GPU: keeps what it was asked, runs on the CPU."""

    asked: dict[str, Any]

    def __init__(self, content: Any, options: Any, **asked: Any) -> None:
        FakeSession.asked = asked
        asked["threads"] = options.intra_op_num_threads
        self._real = REAL_SESSION(content, options, providers=["CPUExecutionProvider"])

    def get_providers(self) -> list[str]:
        return [p if isinstance(p, str) else p[0] for p in FakeSession.asked["providers"]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


REAL_SESSION = onnxruntime.InferenceSession


def test_what_is_asked_of_the_runtime_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", FakeSession)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(devices, "preload", lambda: None)
    ready = Session(NEG, device="cuda:1", threads=3, disabled_optimizers=["CommonSubexpressionElimination"])
    assert ready.device == "cuda:1"
    asked = FakeSession.asked
    assert asked["providers"] == [("CUDAExecutionProvider", {"device_id": "1"}), "CPUExecutionProvider"]
    assert (asked["enable_fallback"], asked["threads"]) == (0, 3)
    assert {"SkipLayerNormFusion", "CommonSubexpressionElimination"} <= set(asked["disabled_optimizers"])
    np.testing.assert_array_equal(ready.run(X)["y"], -X)


def test_a_device_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA failure 101: invalid device ordinal ; GPU=9")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(devices, "preload", lambda: None)
    with pytest.raises(DeviceError, match="cuda:9 is not available: CUDA failure 101: invalid device ordinal"):
        Session(NEG, device="cuda:9")


def test_importing_the_runtime_does_not_warn() -> None:
    code = "import warnings; warnings.simplefilter('error'); import graphkit.runtime"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    warnings.resetwarnings()


def test_a_model_without_outputs_is_not_run() -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => () {y = Neg(x)}')
    with pytest.raises(InputError, match="the model has no outputs, so there is nothing to run it for"):
        run(model, {"x": [1, 2]})
    with pytest.raises(InputError, match=r"outputs=\[\] names none"):
        Session(affine(2)).run({"x": [[1, 2, 3]]}, [])
