"""tools/make_model.py as it is run."""

import subprocess
import sys
from pathlib import Path

import pytest

from strata.gguf.reader import read_gguf
from strata.synthetic import SHAPES

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_model.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, check=False)


def test_a_model_is_written(tmp_path):
    path = tmp_path / "m.gguf"
    done = run("tiny-gpt-oss", "--layers", "2", "--quant", "q4_k", "--seed", "5", "--out", str(path))
    assert done.returncode == 0
    assert "100%" in done.stderr
    file = read_gguf(path)
    assert file.metadata["gpt-oss.block_count"] == 2
    assert file.tensors["blk.1.ffn_up_exps.weight"].type == 12


def test_the_list_names_every_model():
    done = run("--list")
    assert done.returncode == 0
    assert all(name in done.stdout for name in SHAPES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpt-5",), "no synthetic model"),
        (("tiny-llama", "--layers", "9"), "3 layers, 9"),
        (("tiny-llama", "--quant", "q9"), "q9"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments, words, tmp_path):
    done = run(*arguments, "--out", str(tmp_path / "m.gguf"))
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
