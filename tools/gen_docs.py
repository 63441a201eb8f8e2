"""Writes the reference pages that are made from code: docs/architectures.md, docs/config.md and docs/metrics.md.

python tools/gen_docs.py            write them
python tools/gen_docs.py --check    fail when one is stale
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from strata.arch.registry import GROUP, Registry, Source
from strata.config import ALWAYS_ON_FLAGS, Config, ConfigField, config_fields
from strata.telemetry.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

CONFIG_HEAD = """# Settings

Made from `strata/config/schema.py` by `tools/gen_docs.py`; do not edit.

A setting comes from, later ones winning: its default, the YAML file of `--config FILE.yaml`, its environment variable,
its flag. Flags have llama-server's names where the meaning is the same. In YAML a setting is a key of its section:

```yaml
server:
  port: 8080
```

An unknown key, variable or value is an error that names its place. Every `STRATA_` variable must be a setting;
those that Kubernetes adds for a service named `strata` are left alone. Lists are YAML lists, repeated flags, or texts
separated by commas (or a JSON list); sizes may be written as `512MiB` or `24G`, in powers of 1024.
"""

ARCHS_HEAD = """# Architectures

Made from the declarations and `plugins/strata_archs/verified.json` by `tools/gen_docs.py`; do not edit. `make archs`
measures anew. `docs/add-an-arch.md` says which models these are; `strata archs` lists what is installed.

Each architecture is tried on tiny random models with float32 weights, at least one for every optional tensor and every
key that switches something. Of the worst of them:

* state: *verified*: llama.cpp, the numpy reference and the engine give the same logits but for rounding, and the
  engine's bits depend neither on threads nor on how a prompt is cut.
* KL, worst: divergence of the CPU engine's logits from llama.cpp's in nats, of the usual (median) token and of the
  worst one. llama.cpp looks GELU up in a half-precision table, so that a router's near-tie may fall the other way
  there; with that table the reference gives llama.cpp's logits.
* top-1: share of the tokens at which both have the same largest logit.

| architecture | family | state | models | KL | worst | top-1 | measured | words |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

METRICS_HEAD = """# Metrics

Made from `strata/telemetry/metrics.py` by `tools/gen_docs.py`; do not edit.

`GET /metrics` answers in Prometheus' text format. Besides these there are the `process_*` metrics of the Prometheus
client library. Histograms have `_bucket`, `_sum` and `_count` series.
"""


def shown(value: Any) -> str:
    """Return a default as it would be written in YAML."""
    if value is None or value in ((), {}):
        return "unset"
    return f"`{msgspec.json.encode(value).decode()}`".replace("|", "\\|")


def accepted(field: ConfigField) -> str:
    """Return what values a setting takes."""
    kind = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "bytes": "size"}
    words = " or ".join(f"`{choice}`" for choice in field.choices) or kind.get(field.kind, field.kind)
    return f"{words}, {field.limits}" if field.limits else words


def config_page() -> str:
    """Return docs/config.md."""
    parts = [CONFIG_HEAD]
    for section in Config.__struct_fields__:
        title = type(getattr(Config(), section)).__doc__ or ""
        parts.append(f"\n## {section}\n\n{title.strip().splitlines()[0]}\n")
        parts.append("\n| setting | flags | accepted | default | meaning |\n| --- | --- | --- | --- | --- |")
        for field in config_fields():
            if field.section == section:
                flags = ", ".join(f"`{flag}`" for flag in field.flags)
                name = f"`{field.name}`<br>`{field.env}`"
                text = field.help.replace("|", "\\|")
                parts.append(f"\n| {name} | {flags} | {accepted(field)} | {shown(field.default)} | {text} |")
        parts.append("\n")
    parts.append("\n## Flags without effect\n\nTaken for compatibility, because what they ask for is always so:\n\n")
    parts.extend(f"* `{flag}`: {text}\n" for flag, text in ALWAYS_ON_FLAGS.items())
    return "".join(parts)


def archs_page() -> str:
    """Return docs/architectures.md."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    registry = Registry([Source(name, "", target, partial(value_of, target)) for name, target in targets.items()])
    parts = [ARCHS_HEAD]
    for entry in registry.listing():
        if entry.state != "ok":
            raise SystemExit(f"{entry.name}: {entry.detail}")
        seen = entry.verification
        cells = ["untested", "", "", "", "", ""]
        if seen is not None:
            numbers = f"{seen.kl_cpu:.1e}", f"{seen.kl_worst:.1e}", f"{seen.top1:.2%}"
            cells = [seen.state, str(seen.n_models), *numbers, f"{seen.date}, {seen.commit}"]
        parts.append(f"| `{entry.name}` | {entry.family} | {' | '.join(cells)} | {' '.join(entry.words)} |\n")
    return "".join(parts)


def value_of(target: str) -> Any:
    """What an entry point names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def metrics_page() -> str:
    """Return docs/metrics.md."""
    parts = [METRICS_HEAD, "\n| metric | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n"]
    for spec in METRICS:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        kind = spec.kind.removeprefix("sampled_")
        parts.append(f"| `{spec.name}` | {kind} | {spec.unit} | {labels} | {spec.help} |\n")
    return "".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "architectures.md": archs_page,
    "config.md": config_page,
    "metrics.md": metrics_page,
}


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    is_check = parser.parse_args().check
    stale = [name for name, make in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != make()]
    if is_check:
        for name in stale:
            print(f"docs/{name} is stale: run python tools/gen_docs.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
