#!/usr/bin/env bash
# Decode and prompt speed on this machine's GPU, as docs/benchmarks wants them: gpu_bench.sh OUT [SECONDS per run, 240]
# One file OUT/NAME.json for each row; models are made in memory (63 GB of RAM for the largest). Warmed: 512 tokens of
# another list go before the measured ones, from empty heat.
set -euo pipefail
OUT=${1:?where the results go}
LIMIT=${2:-240}
mkdir -p "$OUT"

bench() {  # NAME, then the flags of strata bench
  local name=$1
  shift
  echo "== $name: strata bench $*"
  if timeout "$LIMIT" strata bench --backend cuda "$@" --mailbox --json >"$OUT/$name.txt" 2>"$OUT/$name.log"; then
    tail -n 1 "$OUT/$name.txt" >"$OUT/$name.json"
    head -n 2 "$OUT/$name.txt"
  else
    echo "failed with status $?"
    tail -n 3 "$OUT/$name.log"
  fi
}

bench qwen3-8gib --synthetic qwen3-30b-a3b --vram-limit 8GiB -p 512 -n 512 -r 3
bench qwen3-4gib --synthetic qwen3-30b-a3b --vram-limit 4GiB -p 512 -n 512 -r 3
bench qwen3-all --synthetic qwen3-30b-a3b -p 512 -n 512 -r 3
bench qwen3-8gib-long --synthetic qwen3-30b-a3b --vram-limit 8GiB -p 4096 -b 2048 -n 16 -r 1
bench gpt-oss-8gib --synthetic gpt-oss-120b --vram-limit 8GiB -p 512 -n 512 -r 3
bench gpt-oss-cpu-moe --synthetic gpt-oss-120b --vram-limit 8GiB --cpu-moe -p 512 -n 512 -r 3
