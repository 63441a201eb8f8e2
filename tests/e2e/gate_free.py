"""Where the embedded model lies."""

from importlib.resources import files


def demo_path() -> str:
    return str(files("strata.models").joinpath("strata-demo.gguf"))
