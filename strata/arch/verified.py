"""What was measured of an architecture: its distribution ships the numbers beside its plugins.

A package that holds plugins may have a file `verified.json`, an object from architecture to `Verification`.
`tools/archs_table.py` writes the one of the shipped plugins.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

import msgspec

from strata.errors import ModelError

__all__ = ["FILE_NAME", "Verification", "verification_of"]

FILE_NAME = "verified.json"


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The worst of n_models tiny models with float32 weights.

    state: verified: llama.cpp's logits, the reference's and the engine's are the same but for rounding, and the
    engine's bits depend on nothing; differs: not so.
    kl_cpu, kl_worst: KL divergence of the CPU engine's logits from llama.cpp's in nats: of a model's usual token (the
        median), and of the worst one. Where llama.cpp rounds GELU to half precision, a router's near-tie may fall the
        other way at the worst.
    top1: share of the tokens at which both have the same largest logit.
    date: of the measurement, ISO. commit: what was measured.
    """

    state: Literal["verified", "differs"]
    n_models: int
    kl_cpu: float
    kl_worst: float
    top1: float
    date: str
    commit: str


def verification_of(name: str, target: str) -> Verification | None:
    """The numbers of the plugin at `target` ("package.module:ATTRIBUTE"), None where its package ships none.

    Raises: ModelError for a file that cannot be read.
    """
    package = target.partition(":")[0].partition(".")[0]
    try:
        file = files(package).joinpath(FILE_NAME)
        data = file.read_bytes()
    except (ModuleNotFoundError, TypeError, FileNotFoundError, NotADirectoryError):  # no package, or no such file
        return None
    try:
        return msgspec.json.decode(data, type=dict[str, Verification]).get(name)
    except msgspec.DecodeError as error:
        raise ModelError(f"{file}: {error}; accepted: an object from architecture to Verification") from error
