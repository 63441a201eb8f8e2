#!/usr/bin/env python3
"""Writes a random-weight GGUF model of a public model's exact shape, or a tiny one of the same kind.

tools/make_model.py qwen3-30b-a3b --layers 12 --out q12.gguf
tools/make_model.py --list
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from strata.errors import StrataError
from strata.synthetic import SHAPES, SyntheticModel
from strata.synthetic.layout import QUANTS
from strata.synthetic.writer import write_gguf


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="the model to imitate")
    parser.add_argument("--out", metavar="FILE", help="default: NAME.gguf")
    parser.add_argument("--layers", type=int, metavar="N", help="only the first N layers")
    parser.add_argument("--quant", choices=QUANTS, help="default: the published files' mix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="list the models and their sizes")
    args = parser.parse_args()
    if args.list or args.name is None:
        for name in SHAPES:
            model = SyntheticModel(name)
            print(f"{name:<20} {model.shape.arch:<10} {model.shape.n_layer:>3} layers {model.n_bytes / 1e9:9.2f} GB")
        return 0
    try:
        model = SyntheticModel(args.name, layers=args.layers, quant=args.quant, seed=args.seed)
        write_gguf(model, Path(args.out or f"{args.name}.gguf"))
    except (StrataError, OSError) as error:
        print(f"make_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
