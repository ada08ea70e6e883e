"""What `gpu.sh` brings along to a machine: wheels that are unpacked, and drivers that are found.

    python gpu_kit.py unpack WHEELS FOLDER   the wheels that fit this Python, for PYTHONPATH to name FOLDER
    python gpu_kit.py find KIT               shell lines: where the loaders and NVIDIA's drivers are

Needs nothing but Python, neither pip nor venv: a machine of others' making may have neither.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

NVIDIA_FOLDERS = ("/usr/local/nvidia", "/usr/lib/wsl")
"""Where containers have NVIDIA's drivers when they are not among the system's libraries."""
VULKAN_MANIFESTS = ("etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d")
VULKAN_DRIVERS = ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0")
"""Either has Vulkan in it; the first wants X's libraries."""
OPENCL_DRIVER = "libnvidia-opencl.so.1"


def loads(name: str, symbol: str = "") -> bool:
    """Whether a program that starts now finds a library, and a function in it."""
    code = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2] or '_name')"
    run = [sys.executable, "-c", code, name, symbol]
    return subprocess.run(run, capture_output=True, check=False).returncode == 0


def fits(wheel: str, version: tuple[int, int] = sys.version_info[:2]) -> bool:
    """Whether a wheel is for this Python, by its name: NAME-VERSION-PYTHON-ABI-PLATFORM.whl."""
    python, abi, _ = wheel.removesuffix(".whl").split("-")[-3:]
    major, minor = version
    for tag in python.split("."):
        if tag in (f"py{major}", f"cp{major}{minor}"):
            return True
        if abi == "abi3" and tag.startswith(f"cp{major}") and int(tag[3:]) <= minor:
            return True
    return False


def unpack(wheels: Path, folder: Path) -> None:
    """Unpack the wheels that fit; a folder that was unpacked before stays as it is."""
    if folder.is_dir():
        return
    files = sorted(wheels.glob("*.whl"))
    chosen = [file for file in files if fits(file.name)]
    left = {file.name.split("-")[0] for file in files} - {file.name.split("-")[0] for file in chosen}
    if left or not chosen:
        here = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(f"{wheels}: no wheel for Python {here} of {', '.join(sorted(left)) or 'anything'}")
    under_way = folder.with_name(f"{folder.name}.{os.getpid()}")
    for file in chosen:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(under_way)
    under_way.rename(folder)


class Found:
    """Variables of the environment that are to be set, by name."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}

    def before(self, name: str, folder: Path | str) -> None:
        """Put a folder before those that a variable lists, here and in processes that are started."""
        self.set(name, ":".join(filter(None, (str(folder), os.environ.get(name)))))

    def set(self, name: str, value: Path | str) -> None:
        """Set a variable, here as well, so that what is looked for next is found."""
        self.variables[name] = os.environ[name] = str(value)

    def lines(self) -> Iterable[str]:
        """What a shell sets them by."""
        return (f"export {name}={shlex.quote(value)}" for name, value in self.variables.items())


def bring_loaders(kit: Path, found: Found, has: Callable[..., bool] = loads) -> None:
    """Link the libraries of the kit that the system lacks to a folder: none of its own comes behind them."""
    links, libraries = kit / "lib", kit / "loaders" / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    for link in links.glob("*"):  # of a machine where the kit was before
        link.unlink()
    for file in sorted(libraries.glob("*.so.*")):
        if re.fullmatch(r".+\.so\.\d+", file.name) and not has(file.name):
            links.mkdir(exist_ok=True)
            (links / file.name).symlink_to(file)
    if any(links.glob("*")):
        found.before("LD_LIBRARY_PATH", links)


def find_nvidia(
    kit: Path,
    found: Found,
    root: Path = Path("/"),
    folders: Sequence[str] = NVIDIA_FOLDERS,
    has: Callable[..., bool] = loads,
) -> None:
    """Name NVIDIA's Vulkan and OpenCL to the loaders, where a container lost the files that do so."""
    for folder in (Path(f"{one}/{lib}") for one in folders for lib in ("lib64", "lib")):
        if any((folder / name).exists() and not has(name) for name in (*VULKAN_DRIVERS, OPENCL_DRIVER)):
            found.before("LD_LIBRARY_PATH", folder)
    named = any(path for one in VULKAN_MANIFESTS for path in (root / one).glob("*nvidia*.json"))
    chosen = {"VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"} & os.environ.keys()
    library = next((one for one in VULKAN_DRIVERS if has(one, "vk_icdGetInstanceProcAddr")), None)
    if library and not named and not chosen:
        manifest = kit / "nvidia_icd.json"
        driver = {"library_path": library, "api_version": "1.3.0"}
        manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
        found.set("VK_ADD_DRIVER_FILES", manifest)
    vendors = root / "etc/OpenCL/vendors"
    if any(vendors.glob("*nvidia*.icd")) or "OCL_ICD_VENDORS" in os.environ or not has(OPENCL_DRIVER):
        return
    ours = kit / "vendors"
    ours.mkdir(exist_ok=True)
    for file in vendors.glob("*.icd"):
        (ours / file.name).write_bytes(file.read_bytes())
    (ours / "nvidia.icd").write_text(OPENCL_DRIVER + "\n")
    found.set("OCL_ICD_VENDORS", ours)


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say."""
    match arguments:
        case ["unpack", wheels, folder]:
            unpack(Path(wheels), Path(folder))
        case ["find", kit]:
            Path(kit).mkdir(parents=True, exist_ok=True)
            found = Found()
            bring_loaders(Path(kit), found)
            find_nvidia(Path(kit), found)
            print("\n".join(found.lines()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
