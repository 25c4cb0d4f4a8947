"""What a release says of its repository, from one variable: GITHUB_REPOSITORY (`owner/name`), as in CI.

Without it the package has no links, and ADDRESS stands in README's commands.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINKS = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
BADGES = {"tests": "ci", "site": "docs"}  # by the names of workflows


class Repository(MetadataHookInterface):
    """Adds README and links, and in README the badges and the address."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("GITHUB_REPOSITORY", "")
        url = f"https://github.com/{repository}"
        metadata["urls"] = {name: url + path for name, path in LINKS.items()} if repository else {}
        if repository:
            badges = " ".join(
                f"[![{name}]({url}/actions/workflows/{file}.yml/badge.svg)]({url}/actions)"
                for name, file in BADGES.items()
            )
            title, rest = text.split("\n", 1)
            text = f"{title}\n\n{badges}\n{rest}".replace("ADDRESS", url)
            text = text.replace("](docs/", f"]({url}/blob/main/docs/")
            text = text.replace('"docs/', f'"{url}/raw/main/docs/')
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
