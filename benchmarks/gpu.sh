#!/usr/bin/env bash
# What the GPUs of a machine do with graphml: conformance first, then copy bandwidth, then tokens per second.
#
#   benchmarks/gpu.sh [options of gpu.py]   measure every wgpu adapter and every OpenCL device
#   benchmarks/gpu.sh fetch                 on a machine with a network: put all that another one needs into
#                                           benchmarks/gpu-kit (wheels for this Python, loaders, SmolLM2)
#
# Nothing outside this folder is changed. Where Python has graphml with wgpu or pyopencl they are used as they are;
# elsewhere a virtual environment is made of the kit's wheels, without a network. PYTHON names another Python.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
kit="$here/gpu-kit"
python=${PYTHON:-python3}

fetch() {
  mkdir -p "$kit/wheels" "$kit/debs"
  "$python" -m pip wheel --quiet --wheel-dir "$kit/wheels" "$root[wgpu,opencl]"
  if command -v apt-get dpkg-deb >/dev/null; then # the loaders, for machines that have a driver and no loader
    (cd "$kit/debs" && apt-get download --quiet libvulkan1 ocl-icd-libopencl1)
    for deb in "$kit"/debs/*.deb; do dpkg-deb --extract "$deb" "$kit/loaders"; done
  fi
  prepare
  GRAPHML_CACHE="$kit/cache" "$python" -m graphml pull smollm2
  du -sh "$kit"
}

# The Python to use: with graphml as it stands here, and at least one GPU library.
prepare() {
  export PYTHONPATH="$root:$root/quant:$root/backends:$root/models${PYTHONPATH:+:$PYTHONPATH}"
  local wanted='import graphml; from importlib.util import find_spec as f; assert f("wgpu") or f("pyopencl")'
  if "$python" -c "$wanted" 2>/dev/null; then return; fi
  if [ ! -d "$kit/wheels" ]; then
    echo "$python has no graphml with wgpu or pyopencl, and there is no $kit: run '$0 fetch' where there is a network" >&2
    exit 1
  fi
  [ -x "$kit/venv/bin/python" ] || "$python" -m venv "$kit/venv"
  "$kit/venv/bin/python" -m pip install --quiet --no-index --find-links "$kit/wheels" 'graphml-engine[wgpu,opencl]'
  python="$kit/venv/bin/python"
}

# Loaders from the kit where the system has none, and NVIDIA's drivers named to them where a container lost the names.
find_drivers() {
  export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$(mktemp -d)}
  local lib="$kit/loaders/usr/lib/$(uname -m)-linux-gnu"
  for name in libvulkan.so.1 libOpenCL.so.1; do
    if [ -e "$lib/$name" ] && ! ldconfig -p 2>/dev/null | grep -q "$name"; then
      export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
  done
  if ldconfig -p 2>/dev/null | grep -q libGLX_nvidia.so.0 && ! ls /etc/vulkan/icd.d/nvidia*.json /usr/share/vulkan/icd.d/nvidia*.json >/dev/null 2>&1; then
    mkdir -p "$kit"
    echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.0"}}' >"$kit/nvidia_icd.json"
    export VK_ADD_DRIVER_FILES="$kit/nvidia_icd.json"
  fi
  if ldconfig -p 2>/dev/null | grep -q libnvidia-opencl.so.1 && ! ls /etc/OpenCL/vendors/nvidia*.icd >/dev/null 2>&1; then
    mkdir -p "$kit/vendors"
    cp /etc/OpenCL/vendors/*.icd "$kit/vendors/" 2>/dev/null || true
    echo libnvidia-opencl.so.1 >"$kit/vendors/nvidia.icd"
    export OCL_ICD_VENDORS="$kit/vendors"
  fi
}

if [ "${1:-}" = fetch ]; then
  fetch
  exit
fi
prepare
find_drivers
if [ -d "$kit/cache" ]; then export GRAPHML_CACHE="${GRAPHML_CACHE:-$kit/cache}"; fi
exec "$python" "$here/gpu.py" "$@"
