#!/usr/bin/env bash
# What the GPUs of a machine do with graphml: conformance first, then read bandwidth, then tokens per second.
#
#   benchmarks/gpu.sh [options of gpu.py]   measure every wgpu adapter and every OpenCL device
#   benchmarks/gpu.sh fetch [3.12]          on a machine with a network: put all that another one needs into
#                                           benchmarks/gpu-kit (wheels for this Python or that version's,
#                                           loaders, SmolLM2)
#
# Nothing is fetched or installed from elsewhere: where Python has graphml with wgpu or pyopencl they are used as
# they are, else the kit's wheels are unpacked within it. PYTHON names another Python. Models of shapes are made in
# GRAPHML_CACHE (the kit's, where there is one), results go to gpu-results.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
kit="$here/gpu-kit"
python=${PYTHON:-python3}

fetch() {
  local version=${1:-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
  mkdir -p "$kit/wheels" "$kit/debs"
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$kit/wheels" "$root"
  "$python" -m pip download --quiet --only-binary=:all: --python-version "$version" \
    --find-links "$kit/wheels" --dest "$kit/wheels" 'graphml-engine[wgpu,opencl]'
  if command -v apt-get dpkg-deb >/dev/null; then # the loaders, for machines that have a driver and no loader
    (cd "$kit/debs" && apt-get download --quiet libvulkan1 ocl-icd-libopencl1 \
      libx11-6 libxext6 libxcb1 libxau6 libxdmcp6 libbsd0 libmd0) # NVIDIA's Vulkan wants X's libraries
    for deb in "$kit"/debs/*.deb; do dpkg-deb --extract "$deb" "$kit/loaders"; done
  fi
  prepare
  GRAPHML_CACHE="$kit/cache" "$python" -m graphml pull smollm2
  du -sh "$kit"
}

# The Python to use: with graphml as it stands here, and at least one GPU library.
prepare() {
  export PYTHONPATH="$root:$root/quant:$root/backends:$root/models${PYTHONPATH:+:$PYTHONPATH}"
  # backends are found by the package's metadata, which sources on PYTHONPATH have not
  local wanted='import graphml.cli.main; from importlib.util import find_spec as f; assert f("wgpu") or f("pyopencl")
from importlib.metadata import entry_points as e; assert e(group="graphml.backends"), "graphml is not installed"'
  if "$python" -c "$wanted" 2>/dev/null; then return; fi
  if [ ! -d "$kit/wheels" ]; then
    echo "$python has no graphml with wgpu or pyopencl, and there is no $kit: run '$0 fetch' where there is a network" >&2
    exit 1
  fi
  local site
  site="$kit/site-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  "$python" "$here/gpu_kit.py" unpack "$kit/wheels" "$site"
  export PYTHONPATH="$PYTHONPATH:$site"
  "$python" -c "$wanted"
}

if [ "${1:-}" = fetch ]; then
  fetch "${2:-}"
  exit
fi
prepare
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$(mktemp -d)}
eval "$("$python" "$here/gpu_kit.py" find "$kit")"
if [ -d "$kit/cache" ]; then # compilers keep what they make there, too
  export GRAPHML_CACHE="${GRAPHML_CACHE:-$kit/cache}" XDG_CACHE_HOME="${XDG_CACHE_HOME:-$kit/cache}"
fi
exec "$python" "$here/gpu.py" "$@"
