"""The embedded default model: a small trained Mixture-of-Experts GGUF and its card (README.md).

What lives here: the files themselves and the one function that finds them. What does not: reading them.
"""

from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

__all__ = ["DEMO_MODEL_NAME", "demo_model_path"]

DEMO_MODEL_NAME = "strata-demo.gguf"


@contextmanager
def demo_model_path() -> Generator[Path]:
    """Yield a real file-system path of the embedded model; valid inside the `with` block only.

    A package inside an archive is unpacked to a temporary file for the duration of the block.
    """
    with as_file(files(__name__).joinpath(DEMO_MODEL_NAME)) as path:
        yield path
