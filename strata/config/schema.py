"""Every setting of Strata, as frozen structs. Each field carries its own documentation, flags and range.

Flags have llama-server's names where the meaning is the same. `strata.config.loading` fills the structs and
`docs/config.md` is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from strata.types import SamplingParams

LogLevel = Literal["debug", "info", "warning", "error"]


def doc(
    text: str,
    *flags: str,
    metavar: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> Meta:
    """Describe one field: `text` for people, `flags` of the command line, and the accepted range."""
    limits: dict[str, Any] = {"ge": ge, "gt": gt, "le": le}
    return Meta(description=text, extra={"flags": flags, "metavar": metavar}, **limits)


def doc_bytes(text: str, *flags: str) -> Meta:
    """Describe a field of bytes; text such as 24GiB or 512M is accepted where it is read."""
    return Meta(description=text, extra={"flags": flags, "metavar": "BYTES", "unit": "bytes"}, ge=0)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model is served, and how its prompts are built."""

    path: Annotated[
        str | None,
        doc("GGUF file to load; of a sharded model the first shard. Unset: the embedded demo model", "-m", "--model"),
    ] = None
    alias: Annotated[
        str | None, doc("name of the model in the API; unset: the file's name without .gguf", "-a", "--alias")
    ] = None
    chat_template: Annotated[
        str | None, doc("Jinja chat template as text, instead of the file's own", "--chat-template", metavar="JINJA")
    ] = None
    chat_template_file: Annotated[
        str | None, doc("file holding a Jinja chat template, instead of the model's own", "--chat-template-file")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any],
        doc("JSON object of extra template variables; a request's own ones win", "--chat-template-kwargs"),
    ] = {}
    tokenizer_pre: Annotated[
        str | None,
        doc("pre-tokenizer to use instead of the one the file names (tokenizer.ggml.pre)", "--tokenizer-pre"),
    ] = None
    arch_providers: Annotated[
        dict[str, str],
        doc("which distribution provides an architecture when two do, as ARCH=DISTRIBUTION", "--arch-provider"),
    ] = {}
    load_mode: Annotated[
        Literal["auto", "direct", "buffered", "mapped"],
        doc(
            "how weights are read: direct (large uncached reads), buffered (plain reads), mapped (experts stay in the"
            " memory-mapped file, slower, needs less RAM), auto (direct; mapped when RAM cannot hold the model)",
            "--load-mode",
        ),
    ] = "auto"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and resources of the engine."""

    n_ctx: Annotated[
        int,
        doc("positions of one sequence; 0: what the model was trained for, at most 32768", "-c", "--ctx-size", ge=0),
    ] = 0
    n_kv_tokens: Annotated[
        int,
        doc(
            "KV cache positions shared by all sequences; 0: n_ctx (sequences share them page by page)",
            "--kv-tokens",
            ge=0,
        ),
    ] = 0
    n_batch: Annotated[int, doc("tokens of the largest step", "-b", "--batch-size", ge=1, le=65536)] = 512
    n_parallel: Annotated[int, doc("sequences that run at the same time", "-np", "--parallel", ge=1, le=1024)] = 4
    n_threads: Annotated[
        int, doc("threads of one step; 0: from the affinity mask and the CPU quota", "-t", "--threads", ge=0)
    ] = 0
    kv_type: Annotated[
        Literal["f32", "f16", "q8_0"] | None,
        doc("number format of the KV cache; unset: f16 for serving, f32 for logits and perplexity", "--kv-type"),
    ] = None
    backend: Annotated[
        Literal["cpu", "cuda", "sim"],
        doc(
            "what computes: cpu; cuda (a GPU, and the CPU for experts without a slot); sim (the GPU's part is played by"
            " threads, for tests)",
            "--backend",
        ),
    ] = "cpu"
    device: Annotated[int, doc("number of the GPU", "--device", ge=0)] = 0
    vram_limit_bytes: Annotated[
        int,
        doc_bytes(
            "memory on the GPU that may be used, the driver's context included; 0: what is free less a reserve",
            "--vram-limit",
        ),
    ] = 0
    expert_slots: Annotated[
        int,
        doc("exact number of resident experts; -1: as many as the GPU's memory holds", "--expert-slots", ge=-1),
    ] = -1
    cpu_moe: Annotated[bool, doc("all experts are computed by the CPU", "-cmoe", "--cpu-moe")] = False
    n_cpu_moe: Annotated[
        int,
        doc(
            "experts of the first N layers are computed by the CPU, all others by the GPU, for good; 0: off",
            "-ncmoe",
            "--n-cpu-moe",
            ge=0,
        ),
    ] = 0
    adapt: Annotated[bool, doc("let resident experts follow the conversation", "--adapt", "--no-adapt")] = True
    swap_budget: Annotated[
        int, doc_bytes("bytes a second that swaps may move; 0: 3 % of what the memory gives", "--swap-budget")
    ] = 0
    swap_every_step: Annotated[
        bool, doc("exchange an expert before every step (slow, for tests)", "--swap-every-step")
    ] = False
    profile_path: Annotated[
        str | None,
        doc("file (.strp) of learned expert heat: read at the start, written at the end", "--profile", metavar="FILE"),
    ] = None
    handoff_deadline_s: Annotated[
        float,
        doc(
            "how long a GPU waits for experts of the CPU, for every 8 tokens of a step",
            "--handoff-deadline",
            metavar="SECONDS",
            ge=1e-6,
            le=3600,
        ),
    ] = 0.9
    deadline_scale: Annotated[
        float, doc("multiplies all deadlines inside a step (for slow checkers)", "--deadline-scale", ge=0.001, le=1000)
    ] = 1.0
    nvrtc_path: Annotated[
        str | None,
        doc("the NVRTC library, or its folder; unset: the installed package's, else the system's", "--nvrtc"),
    ] = None
    ram_limit_bytes: Annotated[
        int,
        doc_bytes("RAM the memory plan may use; 0: the cgroup limit, else the machine's memory", "--ram-limit"),
    ] = 0
    spin_us: Annotated[
        int,
        doc("how long idle workers spin while a request is active, in microseconds; -1: default", "--spin-us", ge=-1),
    ] = -1
    poison: Annotated[
        bool,
        doc("fill activations with NaN before every step and fail when one is read (slow, for debugging)", "--poison"),
    ] = False
    trace_path: Annotated[
        str | None,
        doc(
            "file (.strt) that gets the experts of every computed token; unset: routing is not recorded",
            "--trace",
            metavar="FILE",
        ),
    ] = None


class SamplingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drawn when a request does not say. Ranges are those of `strata.types.SamplingParams`."""

    temperature: Annotated[float, doc("0 always takes the likeliest token", "--temp", "--temperature")] = 0.8
    top_k: Annotated[int, doc("keep the k likeliest tokens; 0: off", "--top-k")] = 40
    top_p: Annotated[float, doc("keep the likeliest tokens of this total probability; 1: off", "--top-p")] = 0.95
    min_p: Annotated[float, doc("drop tokens below this fraction of the likeliest one; 0: off", "--min-p")] = 0.05
    typical_p: Annotated[float, doc("locally typical sampling; 1: off", "--typical")] = 1.0
    top_n_sigma: Annotated[float, doc("keep logits within n deviations of the best; -1: off", "--top-nsigma")] = -1.0
    xtc_probability: Annotated[float, doc("chance of excluding top choices; 0: off", "--xtc-probability")] = 0.0
    xtc_threshold: Annotated[float, doc("probability from which a top choice may be excluded", "--xtc-threshold")] = 0.1
    repeat_last_n: Annotated[
        int, doc("tokens that penalties look back; 0: off, -1: the whole context", "--repeat-last-n")
    ] = 64
    repeat_penalty: Annotated[float, doc("divides logits of repeated tokens; 1: off", "--repeat-penalty")] = 1.0
    presence_penalty: Annotated[float, doc("subtracted once from used tokens; 0: off", "--presence-penalty")] = 0.0
    frequency_penalty: Annotated[float, doc("subtracted per use of a token; 0: off", "--frequency-penalty")] = 0.0
    dry_multiplier: Annotated[
        float, doc("strength of the DRY penalty on repeated runs; 0: off", "--dry-multiplier")
    ] = 0.0
    dry_base: Annotated[float, doc("growth of the DRY penalty per repeated token", "--dry-base")] = 1.75
    dry_allowed_length: Annotated[int, doc("run length DRY leaves alone", "--dry-allowed-length")] = 2
    dry_penalty_last_n: Annotated[
        int, doc("tokens DRY looks back; 0: off, -1: the whole context", "--dry-penalty-last-n")
    ] = -1
    dry_sequence_breakers: Annotated[
        tuple[str, ...], doc("texts that end a repeated run (JSON list, or repeat the flag)", "--dry-sequence-breaker")
    ] = SamplingParams().dry_sequence_breakers
    seed: Annotated[int, doc("seed of the draws; -1: a new one for each request", "-s", "--seed", ge=-1)] = -1
    max_tokens: Annotated[
        int, doc("tokens of an answer; -1: up to the context's end", "-n", "--predict", "--n-predict", ge=-1)
    ] = -1

    def params(self) -> SamplingParams:
        """Return the same values as the engine's struct."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in {"seed", "max_tokens"}}
        return SamplingParams(**values, seed=None if self.seed < 0 else self.seed)


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how requests are taken."""

    host: Annotated[
        str, doc("address to listen on; a path ending in .sock is a unix socket", "--host", metavar="ADDRESS")
    ] = "127.0.0.1"
    port: Annotated[int, doc("port to listen on; 0 picks a free one", "--port", ge=0, le=65535)] = 8080
    api_keys: Annotated[
        tuple[str, ...], doc("keys that open the API (comma-separated); unset: no key is asked for", "--api-key")
    ] = ()
    api_key_file: Annotated[str | None, doc("file with one API key a line", "--api-key-file")] = None
    cors_origins: Annotated[
        tuple[str, ...], doc("browser origins that may call the API, * for all", "--cors-origin", metavar="ORIGIN")
    ] = ()
    max_body_bytes: Annotated[int, doc_bytes("largest request body", "--max-body")] = 32 << 20
    max_waiting: Annotated[
        int, doc("sequences that may wait for a place; further requests get 429", "--max-waiting", ge=0)
    ] = 64
    deadline_s: Annotated[
        float, doc("longest time of a request, waiting included; 0: no limit", "--deadline", metavar="SECONDS", ge=0)
    ] = 0.0
    keep_alive_s: Annotated[
        float,
        doc(
            "a quiet stream sends a comment this often, so that proxies keep it open",
            "--keep-alive",
            metavar="SECONDS",
            gt=0,
        ),
    ] = 10.0
    stall_s: Annotated[
        float,
        doc("a client that takes no data for so long loses its request", "--stall-timeout", metavar="SECONDS", gt=0),
    ] = 30.0
    drain_s: Annotated[
        float,
        doc("how long a shutdown lets running requests finish", "--drain-timeout", metavar="SECONDS", ge=0),
    ] = 10.0
    health_stall_s: Annotated[
        float,
        doc("a step without a heartbeat for so long makes /health red", "--health-stall", metavar="SECONDS", gt=0),
    ] = 30.0


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is reported about the process."""

    log_level: Annotated[LogLevel, doc("least severe messages that are written", "--log-level")] = "info"
    log_format: Annotated[
        Literal["text", "json"], doc("text for people, json for one object a line", "--log-format")
    ] = "text"
    otlp_endpoint: Annotated[
        str | None,
        doc(
            "OpenTelemetry collector (OTLP over HTTP) that gets spans; unset: no tracing",
            "--otlp-endpoint",
            metavar="URL",
        ),
    ] = None
    trace_sample_frac: Annotated[
        float, doc("fraction of requests that are traced, 0 to 1", "--trace-sample", metavar="FRACTION", ge=0, le=1)
    ] = 1.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one process."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    server: ServerConfig = ServerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
