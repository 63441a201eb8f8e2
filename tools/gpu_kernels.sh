#!/usr/bin/env bash
# The CUDA kernels on a machine with a GPU: builds the native test programs, compares bits with the CPU kernels (also with
# all types at once, which finds orders that only contention shows), runs compute-sanitizer where it is there, and measures.
# Usage: tools/gpu_kernels.sh [folder or library of NVRTC] [build folder]; without the first, the system's NVRTC.
set -euo pipefail
cd "$(dirname "$0")/.."
NVRTC=${1:-}
BUILD=${2:-build/gpu-kernels}
cmake -S native -B "$BUILD" -G Ninja -DSTRATA_TESTS=ON >/dev/null
ninja -C "$BUILD" test_cuda_ops test_cuda_gpu test_cuda_mailbox test_cuda_attention test_cuda_kernels bench_cuda | tail -n 1
CACHE=$BUILD/cubins
mkdir -p "$CACHE" "$BUILD/logs"

"$BUILD/test_cuda_ops" "$NVRTC" "$CACHE"
"$BUILD/test_cuda_gpu" "$NVRTC" "$CACHE"
"$BUILD/test_cuda_mailbox" "$NVRTC" "$CACHE"
"$BUILD/test_cuda_attention" "$NVRTC" "$CACHE"
"$BUILD/test_cuda_kernels" "$NVRTC" "$CACHE" short | tail -n 1

declare -A RUNNING
for type in 0 1 2 3 6 7 8 10 11 12 13 14 16 17 18 19 20 21 22 23 29 30 34 35 39 40; do
  "$BUILD/test_cuda_kernels" "$NVRTC" "$CACHE" all "$type" >"$BUILD/logs/$type.txt" &
  RUNNING[$type]=$!
done
failed=0
for type in "${!RUNNING[@]}"; do
  wait "${RUNNING[$type]}" || { failed=1; grep -m 5 FAILED "$BUILD/logs/$type.txt" || true; }
done
cat "$BUILD"/logs/*.txt | grep compared | awk '{n += $1} END {print n " values compared by type"}'
[ "$failed" = 0 ] || { echo "some types failed"; exit 1; }

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    for program in test_cuda_ops test_cuda_gpu test_cuda_attention test_cuda_kernels; do
      compute-sanitizer --tool "$tool" --error-exitcode 9 "$BUILD/$program" "$NVRTC" "$CACHE" short | tail -n 1
    done
  done
else
  echo "compute-sanitizer is not installed: memory and races unchecked"
fi
"$BUILD/bench_cuda" "$NVRTC" "$CACHE"
