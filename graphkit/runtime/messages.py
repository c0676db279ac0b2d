"""What ONNX Runtime says, without the places in its own source."""

from __future__ import annotations

import re


def cleaned(text: str) -> str:
    """Drop ONNX Runtime's error code, and the C++ places and signatures, from a message."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : (\w+) : ", "", text)
    place = r"/\S+\.(?:cc|h|hpp|cu|cuh|inl):\d+ "
    text = re.sub(place + r".*? was false\.\s*(?=\S)", "", text, flags=re.DOTALL)
    text = re.sub(place + r"[^\n]*?\)(?: const)?(?: \[with [^\]]*\])? ", "", text)
    text = re.sub(r"\b[\w/]+\.(?:cc|h):\d+ (?:\w+ )?", "", text)
    return text.strip()
