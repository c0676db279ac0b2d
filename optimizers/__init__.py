"""Graph to graph: passes that make a model smaller and faster, and prove that it still computes the same.

>>> import graphkit.optimizers
>>> graphkit.optimizers.passes()["prune"].training
True
"""

from importlib import import_module

from graphkit.optimizers.add_gradients import add_gradients
from graphkit.optimizers.add_loss import add_loss
from graphkit.optimizers.add_updates import add_updates
from graphkit.optimizers.base import PRESETS, Pass, passes
from graphkit.optimizers.extract import extract
from graphkit.optimizers.freeze import freeze
from graphkit.optimizers.inference_form import to_inference
from graphkit.optimizers.lower_training import lower_training
from graphkit.optimizers.opsets import change_opset
from graphkit.optimizers.pipeline import optimize
from graphkit.optimizers.precision import PrecisionReport, to_precision
from graphkit.optimizers.quantize import QuantizationReport, quantize_weights
from graphkit.optimizers.recompute import recompute
from graphkit.optimizers.report import Report

# Each registers its passes; this is the order in which the pipeline tries them.
for _module in (
    "control",
    "loops",
    "guards",
    "no_operation",
    "chains",
    "broadcasts",
    "dims",
    "fold",
    "scales",
    "linear",
    "activations",
    "norms",
    "rotary",
    "attention",
    "convolution",
    "moves",
    "costs",
    "einsum",
    "cpu_kernels",
    "cuda_kernels",
    "gradient_sums",
    "gradient_masks",
    "sequences",
    "recurrent",
    "merge",
    "prune",
    "recompute_pass",
):
    import_module(f"graphkit.optimizers.{_module}")

__all__ = [
    "PRESETS",
    "Pass",
    "PrecisionReport",
    "QuantizationReport",
    "Report",
    "add_gradients",
    "add_loss",
    "add_updates",
    "change_opset",
    "extract",
    "freeze",
    "lower_training",
    "optimize",
    "passes",
    "quantize_weights",
    "recompute",
    "to_inference",
    "to_precision",
]
