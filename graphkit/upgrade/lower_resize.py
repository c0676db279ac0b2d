"""Downward: Resize and its ancestor Upsample, GridSample, RoiAlign."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit.upgrade.adapters import only_input, set_attributes, set_input
from graphkit.upgrade.lower_shape import spread
from graphkit.upgrade.lower_table import Cannot, Lowering, counted_from_front, drop_inputs, lowers, optional_input


@lowers(19, "Resize")
def resize_symmetric(node: ir.Node, lowering: Lowering) -> ir.Node:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "half_pixel_symmetric":
        raise Cannot(f"its coordinate_transformation_mode '{mode}' does not exist there")
    return node


@lowers(18, "Resize")
def resize_axes(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Every axis has a scale or a size: 1, or what it has, for those that ``axes`` leaves out."""
    x = only_input(node)
    for name, plain in (("antialias", 0), ("keep_aspect_ratio_policy", "stretch")):
        attribute = node.attributes.pop(name, None)
        if attribute is not None and attribute.value != plain:
            raise Cannot(f"its {name} does not exist there")
    attribute = node.attributes.pop("axes", None)
    if attribute is None:
        return node
    rank = lowering.rank(x)
    axes = counted_from_front(attribute.as_ints(), rank)
    roi, scales, sizes = (optional_input(node, index) for index in (1, 2, 3))
    if roi is not None and node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        known = lowering.array(roi)
        if known is None:
            raise Cannot("its axes do not exist there, and its region is computed by the graph")
        full = np.concatenate([np.zeros(rank), np.ones(rank)]).reshape(2, rank)
        full[:, axes] = known.reshape(2, len(axes))
        set_input(node, 1, lowering.constant(full.ravel(), known.dtype))
    if scales is not None:
        set_input(node, 2, spread(scales, axes, rank, lowering, sides=1, fill=1))
    if sizes is not None:
        both = lowering.apply1("Concat", [sizes, lowering.apply1("Shape", [x])], axis=0)
        places = [axes.index(n) if n in axes else len(axes) + n for n in range(rank)]
        set_input(node, 3, lowering.apply1("Gather", [both, lowering.constant(places)], axis=0))
    return node


@lowers(13, "Resize")
def resize_inputs(node: ir.Node, lowering: Lowering) -> ir.Node:
    """``roi`` and ``scales`` had to be there, empty where unused."""
    for index in (1, 2):
        if optional_input(node, index) is None:
            set_input(node, index, lowering.constant([], np.float32))
    return node


@lowers(11, "Resize")
def resize_by_scales(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Output positions were divided by the scale, and the sample to the left was taken."""
    where = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if where != "asymmetric":
        raise Cannot(f"its coordinate_transformation_mode '{where}' does not exist there")
    mode = node.attributes.get_string("mode", "nearest")
    scales = lowering.array(optional_input(node, 2))
    if optional_input(node, 3) is not None:
        raise Cannot("it has sizes, and must have scales there")
    if mode == "nearest":
        if scales is None:
            raise Cannot("its scales are computed by the graph, and whether they enlarge decides what is taken there")
        rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
        if not ((scales >= 1).all() and rounding == "floor") and not ((scales <= 1).all() and rounding == "ceil"):
            raise Cannot(f"its nearest_mode '{rounding}' is not what these scales mean there")
    elif mode != "linear" or node.attributes.get_int("exclude_outside", 0) != 0:
        raise Cannot(f"its mode '{mode}' does not exist there")
    for name in list(node.attributes):
        if name != "mode":
            node.attributes.pop(name)
    set_input(node, 1, only_input(node, 2))
    drop_inputs(node, 2)
    return node


@lowers(10, "Resize")
def upsample(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Upsample only enlarges."""
    scales = lowering.array(only_input(node, 1))
    if scales is None or (scales < 1).any():
        raise Cannot("it makes something smaller, or nobody knows")
    node.op_type = "Upsample"
    return node


@lowers(9, "Upsample")
def upsample_scales(node: ir.Node, lowering: Lowering) -> ir.Node:
    scales = lowering.array(only_input(node, 1))
    assert scales is not None
    drop_inputs(node, 1)
    node.attributes.add(ir.AttrFloat32s("scales", [float(scale) for scale in scales.ravel()]))
    return node


@lowers(20, "GridSample")
def grid_sample_modes(node: ir.Node, lowering: Lowering) -> ir.Node:
    known = [shape for value in node.inputs if value is not None and (shape := lowering.dims(value)) is not None]
    if not known or len(known[0]) != 4:
        raise Cannot("it has other than two dimensions in space, or nobody knows")
    mode = node.attributes.get_string("mode", "linear")
    set_attributes(node, mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))
    return node


@lowers(16, "RoiAlign")
def roi_align_pixels(node: ir.Node, lowering: Lowering) -> ir.Node:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode != "output_half_pixel":
        raise Cannot(f"its coordinate_transformation_mode '{mode}' does not exist there")
    node.attributes.pop("coordinate_transformation_mode", None)
    return node
