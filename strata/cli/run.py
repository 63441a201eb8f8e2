"""`strata run`: print the continuation of a prompt, or the answer to a chat message."""

from __future__ import annotations

import argparse
import sys

import trio

from strata import planning, runtime
from strata.cli.options import Commands, add_model, add_settings, read_text, settings
from strata.config import Config
from strata.errors import ConfigError, RequestError
from strata.text.chat import ChatTemplate
from strata.types import Delta, Request


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="print the continuation of a prompt",
        description="Print the continuation of a prompt. With --chat the prompt is a user's message.",
    )
    add_model(parser)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; - reads it from standard input")
    text.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--chat", action="store_true", help="apply the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: the system message")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the text here (repeatable)")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end token")
    parser.add_argument("--show-usage", action="store_true", help="print token counts and speeds on stderr")
    add_settings(parser, ("model", "engine", "sampling"))
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    config = settings(args)
    with planning.open_source(config, args.synthetic, args.layers) as source:
        return trio.run(_run, args, config, source)


def _prompt_text(args: argparse.Namespace) -> str:
    if args.file is not None:
        return read_text(args.file)
    if args.prompt != "-":
        return args.prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is no UTF-8 text: {error.reason} at byte {error.start}") from error


async def _run(args: argparse.Namespace, config: Config, source: planning.Source) -> int:
    text = _prompt_text(args)
    prepared = planning.prepare(config, source, planning.Shape(kv_type="f16", max_seqs=1, text=True))
    async with runtime.open_engine(config, prepared) as served:
        tokenizer = served.tokenizer
        if args.chat:
            prompt = _chat_prompt(args, served, text)
        else:
            prompt = tokenizer.encode(text, add_special=True, parse_special=True)
        request = Request(
            request_id="run",
            prompt=tuple(prompt),
            max_tokens=None if config.sampling.max_tokens < 0 else config.sampling.max_tokens,
            sampling=config.sampling.params(),
            stop=tuple(args.stop),
            ignore_eos=args.ignore_eos,
        )
        async with served.engine.open_stream(request) as stream:
            async for piece in stream:
                if isinstance(piece, Delta):
                    print(piece.text, end="", flush=True)
                    if piece.usage is not None and args.show_usage:
                        usage = piece.usage
                        print(
                            f"\n[{usage.n_prompt} prompt tokens in {usage.prefill_s:.2f} s, "
                            f"{usage.n_generated} tokens in {usage.decode_s:.2f} s]",
                            file=sys.stderr,
                        )
    print()
    return 0


def _chat_prompt(args: argparse.Namespace, served: runtime.Served, text: str) -> list[int]:
    template: ChatTemplate | None = served.chat_template
    if template is None:
        raise RequestError("the model has no chat template; run without --chat, or name one with --chat-template-file")
    messages = [{"role": "user", "content": text}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    rendered = template.render_prompt(messages, served.tokenizer.control_texts, **served.template_kwargs)
    return served.tokenizer.encode_prompt(rendered.text, literal_spans=rendered.literal_spans)
