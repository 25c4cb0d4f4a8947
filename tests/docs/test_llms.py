"""llms.txt of the site."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
import llms  # pyright: ignore[reportMissingImports]


def test_pages_are_listed_by_folder_with_their_addresses():
    titles = {"index": "pbr_jax", "howto/b": "B", "howto/a": "A", "start/install": "Install"}
    text = llms.listing(titles, lambda name: f"{name}.html")
    assert text.startswith("# pbr_jax\n\n> ")
    assert text.endswith(
        "\n## Start\n\n- [Install](start/install.html)\n"
        "\n## How-to\n\n- [A](howto/a.html)\n- [B](howto/b.html)\n"
    )
