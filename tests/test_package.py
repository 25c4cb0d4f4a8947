"""The package as a whole: what importing it costs, and what it never needs."""

import random
import subprocess
import sys

import numpy as np

from pbr_jax.methods.select.behind import scaled

ABSENT = (
    "torch",
    "tensorflow",
    "scann",
    "lancedb",
    "matplotlib",
    "pyarrow",
    "sklearn",
    "sentence_transformers",
    "pandas",
)
DATA = ("tensorflow_datasets", "grain", "array_record", "importlib_resources")
HEAVY = (*ABSENT, *DATA, "transformers", "bm25s", "rouge_score", "nltk", "gguf", "scipy", "optax", "orbax")


def loaded(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded("import pbr_jax") & {*HEAVY, "jax", "numpy"}
    assert not loaded("import pbr_jax.cli.main") & set(HEAVY)


def test_every_module_imports_without_optional_and_test_packages():
    """All but the TFDS builder, a subclass of what the extra `data` brings."""
    code = f"""
import sys
for name in {(*ABSENT, *DATA)!r}:
    sys.modules[name] = None
import importlib, pkgutil, pbr_jax
found = list(pkgutil.walk_packages(pbr_jax.__path__, "pbr_jax."))
found = [module for module in found if module.name != "pbr_jax.data.tfds_builders"]
for module in found:
    importlib.import_module(module.name)
print(len(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_type_checks_leave_the_global_generator_alone() -> None:
    before = random.getstate()
    assert scaled(np.ones(3)).tolist() == [1, 1, 1]
    assert random.getstate() == before
