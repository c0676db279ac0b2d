"""Upsample, Resize, GridSample, RoiAlign: where a sample is taken, once implied and now spelled out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit.upgrade.adapters import Rewriter, adapter, only_input, set_attributes, set_input


@adapter(9, "Upsample")
def upsample_scales(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``scales`` was an attribute."""
    scales = node.attributes.pop("scales")
    set_input(node, 1, rewriter.constant(scales.as_floats(), np.float32))
    return node


@adapter(10, "Upsample")
def upsample_name(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """The operator became Resize."""
    node.op_type = "Resize"
    # Upsample only enlarges, and then the sample to the left is taken: no need to look at the scales later.
    _spell_out(node, only_input(node, 1), "floor")
    return node


@adapter(11, "Resize")
def resize_coordinates(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """Opset 10 divides an output position by the scale and takes the sample to its left.

    Where the scale is less than 1 it takes the one to the right: ONNX Runtime's reading, and the standard's example.
    """
    if "coordinate_transformation_mode" in node.attributes:  # was an Upsample
        return node
    scales = only_input(node, 1)
    if node.attributes.get_string("mode", "nearest") != "nearest":
        _spell_out(node, scales, "floor")
        return node
    constant = ir.convenience.get_const_tensor(scales)
    if constant is not None and not scales.is_graph_input():  # which a caller may override
        values = constant.numpy()
        if (values >= 1).all() or (values <= 1).all():
            _spell_out(node, scales, "floor" if (values >= 1).all() else "ceil")
            return node
    # Some axes grow and some shrink, or nobody knows: first those that grow, then those that shrink. An axis that does
    # not change keeps its samples, so each axis is resized once.
    # (One corner is not exact: ONNX Runtime copies where no axis gains a sample, 3 x 1.1 say, instead of resampling.)
    one = rewriter.constant(1.0, np.float32)
    grown = rewriter.apply1("Resize", [only_input(node), None, rewriter.apply1("Max", [scales, one])])
    made = grown.producer()
    assert made is not None
    set_attributes(made, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    set_input(node, 0, grown)
    _spell_out(node, rewriter.apply1("Min", [scales, one]), "ceil")
    return node


def _spell_out(node: ir.Node, scales: ir.Value, nearest: str) -> None:
    set_input(node, 1, None)
    set_input(node, 2, scales)
    set_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode=nearest)


@adapter(13, "Resize")
def resize_inputs(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """Opset 11 wants ``roi`` and ``scales`` present, empty where unused; now they are left out, and must be."""
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode != "tf_crop_and_resize":
        set_input(node, 1, None)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        set_input(node, 2, None)
    if mode == "tf_half_pixel_for_nn" and node.attributes.get_string("mode", "nearest") == "nearest":
        # Removed in opset 13. It is half_pixel plus one half, and that half can go into the rounding.
        rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
        shifted = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}.get(rounding)
        if shifted is not None:
            set_attributes(node, coordinate_transformation_mode="half_pixel", nearest_mode=shifted)
    return node


@adapter(16, "RoiAlign")
def roi_align_pixels(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """The default moved by half a pixel."""
    set_attributes(node, coordinate_transformation_mode="output_half_pixel")
    return node


@adapter(20, "GridSample")
def grid_sample_modes(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """The modes lost the names that fit two dimensions only."""
    mode = node.attributes.get_string("mode", "bilinear")
    set_attributes(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))
    return node
