"""`strata serve` and the other commands as a user runs them: processes, the embedded model, the official clients."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from openai import OpenAI

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


MODEL = Path(__file__).resolve().parents[2] / "strata" / "models" / "strata-demo.gguf"


def command(*args: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-m", "strata", *args]


def run(*args: str) -> str:
    done = subprocess.run(command(*args), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def served(*args: str):
    process = subprocess.Popen(command("serve", "--port", "0", *args), stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"serving \S+ on (http://\S+)", line):
                yield process, found[1]
                break
        else:
            raise AssertionError(f"the server ended with status {process.wait()}")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(api: OpenAI, stream: bool, text: str = QUESTION, **fields: object) -> str:
    fields = {"temperature": 0, "max_tokens": 40, **fields}
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]
    reply = api.chat.completions.create(model="strata-demo", messages=messages, stream=stream, **fields)
    if not stream:
        return reply.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)


def test_greedy_text_is_the_same_over_threads_runs_and_streaming():
    answers = set()
    for n_threads in ("1", "2"):
        with served("-t", n_threads) as (_, url), client(url) as api:
            answers |= {ask(api, stream) for stream in (True, False) for _ in range(2)}
    assert answers == {ANSWER}


def test_a_device_with_few_slots_gives_the_same_answers_and_shows_its_work(tmp_path):
    profile = tmp_path / "learned.strp"
    flags = ("--backend", "sim", "--expert-slots", "60", "--swap-budget", "1GiB", "--profile", str(profile))
    with served(*flags) as (_, url), client(url) as api, httpx.Client(base_url=url) as http:
        assert {ask(api, stream) for stream in (True, False) for _ in range(2)} == {ANSWER}
        counts = dict(re.findall(r"^(strata_\w+_total) (\S+)$", http.get("/metrics").text, re.MULTILINE))
        assert float(counts["strata_expert_hits_total"]) > 0
        assert float(counts["strata_expert_rows_total"]) > 0
        assert float(counts["strata_handoff_wait_seconds_total"]) > 0
        with http.stream(
            "POST", "/v1/completions", json={"prompt": "Once", "max_tokens": 900, "stream": True}
        ) as reply:
            next(reply.iter_lines())
        assert ask(api, False) == ANSWER  # after a client that left
    assert profile.exists()
    assert json.loads(profile.with_name("learned.strp.json").read_text())["tokens"] > 0
    with served(*flags) as (_, url), client(url) as api:
        assert ask(api, False) == ANSWER


def test_answers_read_as_language():
    with served() as (_, url), client(url) as api:
        assert ask(api, False, "What is a mixture of experts?").startswith("A mixture of experts is a neural network")


def test_concurrent_requests_get_the_answers_they_get_alone():
    from concurrent.futures import ThreadPoolExecutor

    questions = [
        QUESTION,
        "What is 7 + 5?",
        "Tell me a story.",
        "What is the capital of Italy?",
        "Hello!",
        "Who are you?",
    ]
    with served("-np", "4") as (_, url), ThreadPoolExecutor(6) as pool, client(url) as api:
        alone = [ask(api, False, text) for text in questions]
        together = list(pool.map(lambda text: ask(api, True, text), questions))
    assert together == alone


def test_seeded_draws_repeat():
    with served() as (_, url), client(url) as api:
        texts = [ask(api, False, "Tell me a story.", temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_disconnect_stops_the_work():
    with served() as (_, url), httpx.Client(base_url=url) as http:
        body = {"prompt": "Once upon a time", "max_tokens": 900, "stream": True, "ignore_eos": True, "temperature": 0}
        with http.stream("POST", "/v1/completions", json=body) as reply:
            next(reply.iter_lines())
        deadline = time.monotonic() + 10
        while (health := http.get("/health").json())["sequences_running"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert health["sequences_running"] == 0
        assert health["steps"] < 900


def test_idle_server_uses_no_processor_time():
    with served() as (process, url), client(url) as api:
        ask(api, False)

        def used_ticks() -> int:
            with open(f"/proc/{process.pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        time.sleep(0.5)
        before = used_ticks()
        time.sleep(2)
        assert used_ticks() - before <= 4  # of 200: two per cent of one processor


def test_resident_memory_is_what_the_plan_says():
    """The ledger's sum and the process's own pages agree within 5 % once the model serves."""
    with served("-c", "1024") as (process, url), client(url) as api:
        ask(api, False)
        lines = httpx.get(f"{url}/props").json()["memory"]["lines"]
        planned = sum(line["n_bytes"] for line in lines if line["place"] == "ram")
        with open(f"/proc/{process.pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        resident = int(fields["RssAnon"].split()[0]) * 1024
    assert resident == pytest.approx(planned, rel=0.05, abs=16 << 20)  # Python's own growth is not the model's


def test_run_prints_the_text():
    text = run("run", "-p", "Once upon a time", "-n", "12", "--temp", "0", "--seed", "1")
    assert text.strip()
    assert text == run("run", "-p", "Once upon a time", "-n", "12", "--temp", "0", "--seed", "2", "-t", "1")


def test_run_reads_a_pipe_and_stands_a_reader_that_leaves():
    done = subprocess.run(
        command("run", "-p", "-", "-n", "3", "--temp", "0"), input=b"Once upon", capture_output=True, check=True
    )
    assert done.stdout.decode() == run("run", "-p", "Once upon", "-n", "3", "--temp", "0")
    long = command("run", "-p", "Once upon", "-n", "400", "--ignore-eos")
    with subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 1)


def test_run_ends_by_one_interrupt():
    # Poisoned steps take long enough that a busy machine does not finish before it sends the signal.
    long = command("run", "-p", "Once upon", "-n", "900", "--ignore-eos", "--poison")
    with subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (told, process.returncode) == (b"", 130)


def test_logits_command_writes_float32(tmp_path):
    out = tmp_path / "logits.npy"
    run("logits", "--tokens", "1,2,3", "--out", str(out))
    found = np.load(out)
    assert (found.shape, found.dtype) == ((3, 8192), np.float32)


def test_perplexity_and_bench(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The capital of France is Paris. " * 20)
    from gate_free import demo_path

    assert re.match(r"perplexity \d+\.\d+ over \d+ tokens", run("perplexity", demo_path(), str(text)))
    result = json.loads(run("bench", "-p", "16", "-n", "4", "-r", "1", "--json").splitlines()[-1])
    assert {"prompt_tok_s", "decode_tok_s", "read_bytes_per_tok", "bandwidth_frac", "machine", "commit"} <= set(result)
    assert result["read_bytes_per_tok"] > 1_000_000


def test_information_commands():
    assert "qwen3moe" in run("archs")
    assert json.loads(run("archs", "--json"))
    assert "resident in RAM" in run("plan")
    assert "74 used" in run("inspect")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run", "/nowhere/model.gguf", "-p", "x"), "/nowhere/model.gguf"),
        (("run", "--synthetic", "no-such-model", "-p", "x"), "no-such-model"),
        (("plan", "--ram-limit", "20M"), "too much"),
        (("run", "-p", "x", "--top-p", "7"), "0 to 1"),
        (("logits", "--tokens", "1,99999", "--out", "/dev/null"), "99999"),
        (("logits", "--tokens", "1", "--out", "no/such/folder/x.npy"), "no/such/folder"),
        (("logits", "--tokens", "1", "--out", "."), "--out . cannot be written: it is a folder"),
        (("logits", "--text", "", "--out", "/dev/null"), "--text has no tokens"),
        (("run", "-p", ""), "the prompt is empty"),
        (("run", "-p", "x", "-n", "0"), "max_tokens is 0"),
        (("run", "-p", "x", "-c", "1"), "the context holds 1"),
        (("run", "-p", "x", "--stop", ""), "a stop string is empty"),
        (("run", "-p", "x", "--seed", "9" * 30), "2^64 - 1"),
        (("run", "-p", "x", "--ram-limit", "9" * 400), "2^63"),
        (("run", "-p", b"\xff"), "not Unicode"),
        (("run", "-p", "x", "--dry-multiplier", "1", "--dry-sequence-breaker", b"\xff"), "Unicode text"),
        (("run", "-f", "no-such-file"), "no-such-file cannot be read: No such file"),
        (("run", "-f", "."), ". cannot be read: Is a directory"),
        (("run", "-p", "x", "--chat", "--chat-template", "{{ 1 / 0 }}"), "division by zero"),
        (("run", "-p", "x", "--chat", "--chat-template-kwargs", "messages=1"), "--chat-template-kwargs holds messages"),
        (("plan", "-c", "9" * 30), "accepted: up to 1073741824"),
        (("plan", "--kv-tokens", str(2**62)), "accepted: up to 1073741824"),
        (("serve", "--port", "0", "--api-key", ""), "a key is empty"),
        (("serve", "--port", "0", "--api-key-file", "no-such-file"), "no-such-file cannot be read"),
        (("serve", "--host", "a" * 200 + ".sock"), "AF_UNIX path too long"),
        (("serve", "--port", "0", "--chat-template", "{% for"), "does not compile"),
        (("serve", "--port", "0", "--chat-template-file", "no-such-file"), "no-such-file cannot be read"),
        (("perplexity", str(MODEL), "no-such-file"), "no-such-file cannot be read: No such file"),
        (("perplexity", str(MODEL), str(MODEL)), "is no UTF-8 text"),
    ],
)
def test_errors_are_one_line_that_names_the_value(args, words):
    done = subprocess.run(command(*args), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("strata: ")
    assert "Traceback" not in done.stderr
