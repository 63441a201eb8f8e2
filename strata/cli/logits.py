"""`strata logits` and `strata perplexity`: the model's raw numbers for given tokens."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import numpy as np
import trio
from tqdm import tqdm

from strata import planning, runtime
from strata.cli.options import Commands, add_model, add_settings, positive, read_text, settings, token_ids
from strata.config import Config
from strata.engine.offline import logits_of
from strata.errors import ConfigError, RequestError


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser("logits", help="write float32 logits [n_tokens, n_vocab] as .npy")
    add_model(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokens", type=token_ids, metavar="IDS", help="token ids, 1,2,3 or @FILE")
    source.add_argument("--text", metavar="TEXT", help="text to tokenize")
    parser.add_argument("--out", required=True, metavar="F.npy", help="file to write")
    parser.add_argument("--chunk", type=positive, metavar="N", help="tokens per step (changes no bit of the result)")
    add_settings(parser, ("model", "engine"))
    parser.set_defaults(handler=logits)

    parser = commands.add_parser("perplexity", help="perplexity of a text file")
    add_model(parser, required=True)
    parser.add_argument("text_file", metavar="FILE", help="UTF-8 text")
    parser.add_argument("--window", type=positive, default=512, metavar="N", help="tokens that are read together")
    add_settings(parser, ("model", "engine"))
    parser.set_defaults(handler=perplexity)


def logits(args: argparse.Namespace) -> int:
    config = settings(args)
    _check_out(Path(args.out))
    with planning.open_source(config, args.synthetic, args.layers) as source:
        return trio.run(_logits, args, config, source)


async def _logits(args: argparse.Namespace, config: Config, source: planning.Source) -> int:
    tokens = args.tokens
    if tokens is None:
        tokens = tuple(source.tokenizer.encode(args.text, add_special=True, parse_special=True))
        if not tokens:
            raise RequestError("--text has no tokens; at least one is needed")
    async with runtime.open_offline(config, source, n_ctx=len(tokens)) as backend:
        rows = [rows async for rows in logits_of(backend, tokens, args.chunk)]
    result = np.concatenate(rows)
    _write(Path(args.out), result)
    print(f"{args.out}: float32 [{result.shape[0]}, {result.shape[1]}]")
    return 0


def _check_out(out: Path) -> None:
    """Refuse a file that cannot be written before the model is loaded for it. Raises: ConfigError."""
    if out.is_dir():
        raise _cannot_write(out, "it is a folder")
    if not out.parent.is_dir():
        raise _cannot_write(out, f"there is no folder {out.parent}")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise _cannot_write(out, "no permission")


def _write(out: Path, result: np.ndarray) -> None:
    """Write an array under exactly this name. Raises: ConfigError."""
    try:
        with out.open("wb") as file:
            np.save(file, result)
    except OSError as error:
        raise _cannot_write(out, error.strerror or str(error)) from error


def _cannot_write(out: Path, why: str) -> ConfigError:
    return ConfigError(f"--out {out} cannot be written: {why}")


def perplexity(args: argparse.Namespace) -> int:
    config = settings(args)
    with planning.open_source(config, args.synthetic, args.layers) as source:
        return trio.run(_perplexity, args, config, source)


async def _perplexity(args: argparse.Namespace, config: Config, source: planning.Source) -> int:
    tokenizer = source.tokenizer
    tokens = tokenizer.encode(read_text(args.text_file), add_special=False, parse_special=False)
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    n_window = args.window - len(bos)
    if len(tokens) < 2 or n_window < 2:
        raise RequestError(f"{args.text_file} has {len(tokens)} tokens and a window {n_window}; at least 2 are needed")
    windows = [tokens[i : i + n_window] for i in range(0, len(tokens) - 1, n_window)]
    total, n_scored = 0.0, 0
    async with runtime.open_offline(config, source, n_ctx=args.window) as backend:
        for window in tqdm(windows, desc="perplexity", unit="window", disable=len(windows) < 2):
            ids = bos + window
            at = 0
            async for rows in logits_of(backend, ids, None):
                targets = ids[at + 1 : at + 1 + len(rows)]
                scores = _log_probabilities(rows[: len(targets)], targets)
                skip = max(len(bos) - 1 - at, 0)
                total -= float(scores[skip:].sum())
                n_scored += max(len(targets) - skip, 0)
                at += len(rows)
    print(f"perplexity {_exp(total / n_scored):.4f} over {n_scored} tokens in {len(windows)} windows")
    return 0


def _exp(mean: float) -> float:
    """e to the mean; infinite where that is more than a float holds."""
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def _log_probabilities(rows: np.ndarray, targets: list[int]) -> np.ndarray:
    """ln p of each target. rows: float32 [n, n_vocab]; returns float64 [n]."""
    wide = rows.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide[np.arange(len(targets)), targets] - np.log(np.exp(wide).sum(-1))
