"""Imports point one way: values, detectors, guard, monitor and coordinator, hosts."""

import subprocess
import sys

import pytest

from ._sources import Import, imports, trees

# Each line may import the lines above it, but not its neighbours. The longest name that
# fits counts. The root `slav1` is what users import; below it only its version is used.
LINES = [
    {"slav1.phase", "slav1.decision", "slav1.named_ranks", "slav1.state"},
    {"slav1.checkpoint.peers", "slav1.session.parts"},
    {"slav1.sample", "slav1.breach"},
    {"slav1.detectors", "slav1.ledger", "slav1.recorder", "slav1.startup", "slav1.testing"},
    {"slav1.contract", "slav1.guard", "slav1.replay", "slav1.saves", "slav1.torch_signals"},
    {"slav1.torch_memory", "slav1.torch_own_work"},
    {"slav1.demo", "slav1.policy", "slav1.verdict", "slav1.checkpoint", "slav1.gradients", "slav1"},
    {"slav1.coordinator", "slav1.session.messages", "slav1.session.run_folder", "slav1.seeds"},
    {"slav1.monitor", "slav1.metrics", "slav1.replicas"},
    {"slav1.session"},
    {"slav1.cli", "sla_lightning", "sla_accelerate"},
    {"sla_accelerate.cli"},
]
HOSTS = {
    "lightning": "sla_lightning",
    "pytorch_lightning": "sla_lightning",
    "sla_lightning": "sla_lightning",
    "accelerate": "sla_accelerate",
    "transformers": "sla_accelerate",
    "sla_accelerate": "sla_accelerate",
}
# What a module that the monitor imports must not import, whole or in part.
HEAVY = {"torch", "torchmetrics", "numpy", "pydantic", *HOSTS}

OURS = [one for one in imports() if one.imported.split(".")[0] in ("slav1", *HOSTS)]


def place(module: str) -> tuple[int, str] | None:
    """Line of a module, and the name in LINES that it got it from."""
    fitting = [
        (line, name)
        for line, names in enumerate(LINES)
        for name in names
        if module == name or (module.startswith(f"{name}.") and name != "slav1")
    ]
    return max(fitting, key=lambda found: len(found[1]), default=None)


def points_upwards(one: Import) -> bool:
    """Whether something is imported that stands below, or beside in another package."""
    here, there = place(one.module), place(one.imported)
    if here is None or there is None:
        return False
    return there[0] >= here[0] and there[1] != here[1]


def is_a_strangers_host(one: Import) -> bool:
    """Whether a host is imported by another than its own adapter."""
    return HOSTS.get(one.imported.split(".")[0]) not in (None, one.module.split(".")[0])


def reached_at_once(start: str) -> set[str]:
    """All modules that importing ``start`` imports, packages above them included."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        module = ahead.pop()
        if module in reached:
            continue
        reached.add(module)
        parts = module.split(".")
        ahead += [".".join(parts[:end]) for end in range(1, len(parts))]
        ahead += [one.imported for one in imports() if one.module == module and one.is_at_once]
    return reached


def test_every_module_has_a_place() -> None:
    """
    A new module says in which line it stands.
    """
    assert [module for module in trees() if place(module) is None] == [], "add them to LINES"


def test_points_downwards() -> None:
    """
    A module imports only what stands above it in LINES, or its own package.
    """
    wrong = [f"{one.module} imports {one.imported}" for one in OURS if points_upwards(one)]

    assert wrong == []


def test_only_its_adapter_imports_a_host() -> None:
    """
    The core imports no host, not even in a function, and hosts do not import each other.
    """
    wrong = [f"{one.module} imports {one.imported}" for one in OURS if is_a_strangers_host(one)]

    assert wrong == []


def test_only_the_figures_import_torchmetrics() -> None:
    """
    Who does not ask for figures needs no torchmetrics.
    """
    wrong = [one.module for one in imports() if one.imported.split(".")[0] == "torchmetrics"]

    assert [module for module in wrong if not module.startswith("slav1.metrics")] == []


def test_adapters_use_what_is_public() -> None:
    """
    An adapter imports no private module of the core, nor of the other adapter.
    """
    wrong = [
        f"{one.module} imports {one.imported}"
        for one in OURS
        if one.module.startswith("sla_")
        and "._" in one.imported
        and one.imported.split(".")[0] != one.module.split(".")[0]
    ]

    assert wrong == []


def test_monitor_reaches_nothing_heavy() -> None:
    """
    No chain of imports leads from the monitor to torch, numpy, a host or the checkpoints.
    """
    reached = reached_at_once("slav1.monitor.__main__")

    assert reached & HEAVY == set()
    # It is torch-free but large, and no monitor writes checkpoints.
    assert not [module for module in reached if module.startswith("slav1.checkpoint")]


@pytest.mark.slow
def test_monitor_process_loads_nothing_heavy() -> None:
    """
    The monitor's program, really imported, has neither torch nor numpy nor a host in it.
    """
    code = "import sys, slav1.monitor.__main__; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert set(loaded.stdout.split()) & HEAVY == set()
    assert "slav1.monitor.loop" in loaded.stdout.split()
