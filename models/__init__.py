"""Small real programs, run from a checkout as ``python -m models.NAME``; not part of the installed package."""
