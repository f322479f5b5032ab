"""Huilu (回炉): closed-loop post-training of language models, from one job file."""

__version__ = "0.1.0"
