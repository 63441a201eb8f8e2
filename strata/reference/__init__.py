"""The numpy oracle: ops, router, whole models and a plan interpreter, slow and obvious. The server never imports it."""

from strata.reference.model import logits

__all__ = ["logits"]
