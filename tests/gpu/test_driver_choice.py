"""Drivers of GPU libraries: which device they take, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from graphml.errors import BackendError
from graphml.loading import discovery
from tests.gpu.driven import NAMES, opened


@pytest.mark.parametrize("name", NAMES)
def test_a_device_is_chosen_by_number_or_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = opened(name)
    setting = {"wgpu": "GRAPHML_WGPU_ADAPTER", "opencl": "GRAPHML_OPENCL_DEVICE"}[name]
    first = kind()
    title = first.facts.name
    first.close()
    for wanted in ("0", title[2:].upper()):
        monkeypatch.setenv(setting, wanted)
        made = kind()
        assert made.facts.name == title
        made.close()
    for wanted in ("99", "no such thing"):
        monkeypatch.setenv(setting, wanted)
        with pytest.raises(BackendError) as found:
            kind()
        assert setting in str(found.value)
        assert f"0: {title}" in str(found.value)


@pytest.mark.parametrize(("name", "package"), [("wgpu", "wgpu"), ("opencl", "pyopencl")])
def test_without_its_library_a_backend_says_what_to_install(name: str, package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from graphml_{name} import BACKEND\n"
        "print(BACKEND.unavailable())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"the package `{package}` is not installed" in done.stdout
    assert f"pip install '.[{name}]'" in done.stdout


@pytest.mark.parametrize(("name", "package"), [("wgpu", "wgpu"), ("opencl", "pyopencl")])
def test_importing_a_backend_loads_no_library(name: str, package: str) -> None:
    code = f"import sys, graphml_{name}; print({package!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", NAMES)
def test_doctors_facts_name_the_device(name: str) -> None:
    opened(name)
    facts = discovery.backend(name).describe()
    assert str(facts["device"]).startswith("0: ")
    assert "timestamps" in str(facts["features"])
    assert int(str(facts["largest binding bytes"])) >= 1 << 27


def test_vulkan_tells_how_much_memory_a_graphics_card_has() -> None:
    opened("wgpu")
    from graphml_wgpu import adapters, vulkan

    found = [one for one in adapters.adapters() if one.info["backend_type"] == "Vulkan"]
    if not found:
        pytest.skip("no adapter of Vulkan")
    real = found[0]
    info = {**real.info, "adapter_type": "DiscreteGPU"}
    card = SimpleNamespace(info=info, limits=real.limits, features=real.features)
    facts = adapters.facts(card)
    assert (facts.kind, facts.unified_memory) == ("discrete", False)
    assert (
        facts.memory_bytes
        == vulkan.devices()[info["vendor_id"], info["device_id"], info["device"]].memory_bytes
    )
    assert facts.memory_bytes > 1 << 28
    card.info = {**info, "device": "another"}
    assert adapters.facts(card).memory_bytes is None


@pytest.mark.parametrize(
    ("version", "extensions", "features", "has"),
    [
        ("OpenCL 3.0 A", "cl_khr_subgroups cl_khr_subgroup_shuffle", (), True),
        ("OpenCL 3.1 A", "cl_khr_subgroup_shuffle", ("__opencl_c_int64", "__opencl_c_subgroups"), True),
        ("OpenCL 3.0 A", "cl_khr_subgroup_shuffle", ("__opencl_c_int64",), False),
        ("OpenCL 3.0 A", "cl_khr_subgroups", ("__opencl_c_subgroups",), False),
        ("OpenCL 2.1 A", "cl_khr_subgroups cl_khr_subgroup_shuffle", (), False),
    ],
)
def test_subgroups_of_opencl_are_an_extension_or_a_feature(
    version: str, extensions: str, features: tuple[str, ...], has: bool
) -> None:
    pytest.importorskip("pyopencl")
    from graphml_opencl.devices import facts

    numbers = "global_mem_size max_mem_alloc_size max_parameter_size max_work_group_size local_mem_size type"
    device = SimpleNamespace(
        name="A",
        vendor="A",
        version=version,
        extensions=extensions,
        opencl_c_features=[SimpleNamespace(name=name) for name in features],
        driver_version="1",
        platform=SimpleNamespace(name="A"),
        max_work_item_sizes=(256, 256, 64),
        mem_base_addr_align=1024,
        host_unified_memory=False,
        **dict.fromkeys(numbers.split(), 4),
    )
    assert facts(device).has_subgroups is has
