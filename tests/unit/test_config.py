"""Settings: where they come from, who wins, and what a wrong one is told."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from strata.config import Config, SamplingConfig, config_fields, load_config, parse_bytes
from strata.errors import ConfigError
from strata.types import SamplingParams

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path):
    def write_yaml(text):
        path = tmp_path / "s.yaml"
        path.write_text(text)
        return path

    return write_yaml


def problems(**kwargs):
    with pytest.raises(ConfigError) as raised:
        load_config(**{"environ": {}} | kwargs)
    return str(raised.value).splitlines()


def test_nothing_given_is_all_defaults():
    assert load_config(environ={"PATH": "/bin"}) == Config()
    assert Config().sampling.params() == SamplingParams()


def test_yaml_below_environment_below_flags(write):
    path = write("server: {port: 1, host: a, drain_s: 3}\nengine: {n_ctx: 5}\n")
    environ = {"STRATA_SERVER_PORT": "2", "STRATA_SERVER_HOST": "b"}
    config = load_config({"server.port": "3", "server.stall_s": None}, path, environ)
    assert (config.server.port, config.server.host, config.server.drain_s, config.engine.n_ctx) == (3, "b", 3.0, 5)
    assert config.server.stall_s == Config().server.stall_s


def test_every_setting_can_come_from_every_source(write):
    samples = {"str": "x", "int": "1", "float": "1", "bool": "true", "list": "x,y", "map": "a=b", "bytes": "1K"}
    values = {"int": 1, "float": 1.0, "bool": True, "list": ("x", "y"), "map": {"a": "b"}, "bytes": 1024, "str": "x"}
    for field in config_fields():
        text = field.choices[-1] if field.choices else samples[field.kind]
        wanted = field.choices[-1] if field.choices else values[field.kind]
        section, name = field.name.split(".")
        raw = msgspec.json.encode(
            text if field.kind in {"str", "bytes"} else list(wanted) if field.kind == "list" else wanted
        ).decode()
        for config in (
            load_config({field.name: text}, environ={}),
            load_config(environ={field.env: text}),
            load_config(yaml_path=write(f"{section}:\n  {name}: {raw}\n"), environ={}),
        ):
            assert getattr(getattr(config, section), name) == wanted


def test_every_setting_is_described_once():
    fields = config_fields()
    flags = [flag for field in fields for flag in field.flags]
    assert len(flags) == len(set(flags))
    assert all(field.help and field.flags for field in fields)
    assert len({field.env for field in fields}) == len(fields)
    assert {field.name for field in fields if field.optional and field.default is not None} == set()


def test_sampling_covers_the_engines_parameters():
    ours = set(SamplingConfig.__struct_fields__) - {"max_tokens"}
    assert ours == set(SamplingParams.__struct_fields__) - {"logit_bias", "n_logprobs", "min_keep"}
    assert load_config({"sampling.seed": "7"}, environ={}).sampling.params().seed == 7


def test_lists():
    def keys(value):
        return load_config({"server.api_keys": value}, environ={}).server.api_keys

    assert keys("a, b") == keys(["a", "b"]) == keys(["a,b"]) == keys('["a", "b"]') == ("a", "b")
    breakers = load_config({"sampling.dry_sequence_breakers": ['["\\n", ","]', "x"]}, environ={})
    assert breakers.sampling.dry_sequence_breakers == ("\n", ",", "x")


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("0", 0), ("4096", 4096), ("512M", 512 << 20), ("24GiB", 24 << 30), ("1.5 g", 3 << 29), ("2TB", 2 << 40)],
)
def test_sizes(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "-1", "1X", "GiB", "1e3", "0x10"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="expected a number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("server:\n  port: 1\n  prot: 2\n", "s.yaml:3: unknown setting server.prot; did you mean server.port?"),
        ("port: 1\n", "s.yaml:1: unknown setting port; did you mean server.port?"),
        ("sampling:\n  temp: 1\n", "s.yaml:2: unknown setting sampling.temp; did you mean sampling.temperature?"),
        ("servre:\n  port: 1\n", "s.yaml:1: unknown setting servre; did you mean server?"),
        ("engine:\n  ctx_size: 1\n", "s.yaml:2: unknown setting engine.ctx_size; did you mean engine.n_ctx?"),
        ("qqq: 1\n", "s.yaml:1: unknown setting qqq; sections are model, engine, sampling, server, telemetry"),
        ("server:\n  port: 70000\n", "s.yaml:2: server.port is 70000; Expected `int` <= 65535"),
        ("server:\n  port: '80'\n  host: 5\n", "s.yaml:3: server.host is 5; Expected `str`, got `int`"),
        ("sampling:\n\n  top_p: 1.5\n", "s.yaml:3: sampling.top_p is 1.5; accepted: 0 to 1"),
        ("engine:\n  kv_type: f64\n", "s.yaml:2: engine.kv_type is 'f64'; Invalid enum value 'f64'"),
        ("engine:\n  ram_limit_bytes: lots\n", "s.yaml:2: engine.ram_limit_bytes is 'lots'; expected a number of bytes"),
        ("server: {port: 1}\nserver: {port: 2}\n", "s.yaml:2: server was given already in line 1"),
        ("server:\n  port: 1\n  port: 2\n", "s.yaml:3: port was given already in line 2"),
        ("server: 5\n", "s.yaml:1: section server must be a mapping"),
        ("- a\n", "s.yaml:1: the file must be a mapping"),
        ("server: {\n", "s.yaml:2: not valid YAML"),
        ("server:\n  host: !!python/object/apply:os.getpid []\n", "s.yaml:2: not valid YAML"),
    ],
)  # fmt: skip
def test_wrong_yaml_is_told_with_its_line(write, text, told):
    path = write(text)
    (problem,) = problems(yaml_path=path)
    assert problem.removeprefix(f"{path.parent}/").startswith(told)


def test_wrong_variables_and_flags_are_told_by_name():
    assert problems(environ={"STRATA_SERVER_PRT": "1"}) == [
        "STRATA_SERVER_PRT: unknown setting STRATA_SERVER_PRT; did you mean STRATA_SERVER_PORT?"
    ]
    (problem,) = problems(environ={"STRATA_ENGINE_N_CTX": "many"})
    assert problem.startswith("STRATA_ENGINE_N_CTX: engine.n_ctx is 'many'; Expected `int`")
    (problem,) = problems(argv_overrides={"engine.poison": "maybe"})
    assert problem.startswith("--poison: engine.poison is 'maybe'")
    assert len(problems(argv_overrides={"server.port": "x"}, environ={"STRATA_X": "", "STRATA_Y": ""})) == 3


def test_secrets_are_not_repeated_in_errors():
    (problem,) = problems(environ={"STRATA_SERVER_API_KEYS": '["sesame", 5]'})
    assert problem.startswith("STRATA_SERVER_API_KEYS: server.api_keys")
    assert "sesame" not in problem


def test_variables_of_other_makers_are_left_alone():
    links = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR"]
    assert load_config(environ={f"STRATA_{link}": "tcp://10.0.0.1:80" for link in links}) == Config()


def test_files_that_cannot_be_read(tmp_path):
    (problem,) = problems(yaml_path=tmp_path / "none.yaml")
    assert "none.yaml: the configuration file cannot be read" in problem
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    (problem,) = problems(yaml_path=tmp_path / "bin.yaml")
    assert "bin.yaml: the configuration file cannot be read" in problem


def test_an_empty_file_and_empty_sections_change_nothing(write):
    assert load_config(yaml_path=write("# nothing\n"), environ={}) == Config()
    assert load_config(yaml_path=write("server:\nengine: ~\n"), environ={}) == Config()


def test_an_empty_text_unsets_an_optional_setting(write):
    path = write("model: {alias: a}\n")
    assert load_config(yaml_path=path, environ={"STRATA_MODEL_ALIAS": ""}).model.alias is None


@pytest.mark.parametrize("given", [[""], ["a", ""]])
def test_an_empty_key_does_not_open_the_door(given):
    """As it is given by `--api-key "$KEY"` when the shell has no KEY."""
    (problem,) = problems(argv_overrides={"server.api_keys": given})
    assert problem.startswith("--api-key: server.api_keys is wrong; a key is empty")
    assert "a key is empty" in problems(environ={"STRATA_SERVER_API_KEYS": ""})[0]


def test_values_are_shown_in_short(write):
    path = write("a: &a [x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a]\nengine: {n_ctx: [*b, *b, *b, *b, *b]}\n")
    assert max(map(len, problems(yaml_path=path))) < 400


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_load(path):
    assert load_config(yaml_path=path, environ={}) != Config()


def test_shipped_configurations_exist():
    assert len(list((ROOT / "configs").glob("*.yaml"))) >= 5


def test_reference_pages_are_fresh():
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_docs.py"), "--check"],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
