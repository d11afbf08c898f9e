#!/usr/bin/env bash
# Builds kaldifeat 1.24 from its sdist into the environment whose Python is $1, without a network
# and without a CUDA toolkit. Unity builds parse the headers of torch once a library instead of once a file: 80 seconds
# of one core in place of some minutes of two.
set -euo pipefail
python=$(realpath -s "$1")
here=$(cd "$(dirname "$0")" && pwd)

"$python" -c "import kaldifeat" 2>/dev/null && exit 0
echo "building kaldifeat from source (about a minute and a half)"
"$python" -m pip install --quiet --no-deps --require-hashes --requirement "$here/tools.txt"
PATH="$(dirname "$python"):$PATH" \
MAKEFLAGS="-j$(nproc)" \
KALDIFEAT_MAKE_ARGS="-j$(nproc)" \
KALDIFEAT_CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib \
-Dkaldifeat_BUILD_TESTS=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 \
-DPYTHON_EXECUTABLE=$python \
-Dpybind11_DIR=$("$python" -m pybind11 --cmakedir) \
-DFETCHCONTENT_SOURCE_DIR_PYBIND11=$here/pybind11 \
-DTorch_DIR=$here/torch" \
  "$python" -m pip install --quiet --no-build-isolation --no-deps --require-hashes --requirement "$here/kaldifeat.txt"
"$python" -c "import torch, kaldifeat"
