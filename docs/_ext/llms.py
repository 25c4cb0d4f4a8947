"""llms.txt beside the site (https://llmstxt.org): what the project is, and every page with its address."""

from pathlib import Path
from typing import Any

_TITLES = {
    "start": "Start", "tutorials": "Tutorials", "howto": "How-to", "papers": "Papers", "concepts": "Concepts",
    "results": "Results", "reference": "Reference",
}  # fmt: skip


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}


def _write(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        titles = {name: title.astext() for name, title in app.env.titles.items()}
        text = listing(titles, app.builder.get_target_uri)
        Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")


def listing(titles: dict[str, str], address: Any) -> str:
    """The file's text; `titles` has page names, such as howto/sweeps, `address` maps one to its file."""
    text = (
        "# pbr_jax\n\n> A JAX/Flax toolkit for personalized retrieval-augmented generation: published "
        "systems as configurations of one pipeline.\n"
    )
    for folder, title in _TITLES.items():
        pages = sorted(name for name in titles if name.startswith(f"{folder}/"))
        lines = "".join(f"- [{titles[name]}]({address(name)})\n" for name in pages)
        text += f"\n## {title}\n\n{lines}" if lines else ""
    return text
