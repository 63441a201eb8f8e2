"""Strata runs Mixture-of-Experts models that are larger than the GPU."""

__version__ = "0.1.0"
