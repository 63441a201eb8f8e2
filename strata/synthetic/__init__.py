"""Random-weight models of exact public shapes: benchmarks and tests need no download.

`SyntheticModel` looks like an opened GGUF file (metadata, tensor directory) and hands out the bytes of any rows of any
tensor, the same ones that `write_gguf` puts into a file.
"""

from strata.synthetic.model import SyntheticModel
from strata.synthetic.shapes import SHAPES

__all__ = ["SHAPES", "SyntheticModel"]
