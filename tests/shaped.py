"""The modules whose annotations are checked while tests run."""

from pathlib import Path

# Modules that annotate shapes check all their annotations at every call. Elsewhere pyright does: a plan,
# which is plain Python, takes eight times as long with the checks.
PACKAGE = Path(__file__).parents[1] / "pbr_jax"
SHAPED = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "\nfrom jaxtyping import" in path.read_text(encoding="utf-8")
]
