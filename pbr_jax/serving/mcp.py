"""A user's memory as tools of an agent, by the Model Context Protocol."""

from typing import Any

from pbr_jax.system import System


def tools(system: System, user: str) -> Any:
    """The server (`mcp.server.MCPServer`) of the tools `remember`, `search` and `forget` of one user.

    Needs the package `mcp`, from version 2 on.
    """
    from mcp.server import MCPServer  # type: ignore[import-not-found]

    server = MCPServer("pbr-jax", instructions="The memory of one user: texts that are kept and found again.")

    @server.tool()
    def remember(text: str, time: str | None = None) -> str:
        """Keeps a text about the user; `time` is its date, such as 2024-03-01. Returns its id."""
        return system.add(user, [text], time=time)[0].id

    @server.tool()
    def search(query: str, k: int = 5) -> list[dict[str, Any]]:
        """Finds the k texts that fit a question best."""
        found = system.search(user, query, k)
        return [
            {"id": one.document.id, "text": one.document.text, "score": one.score}
            for one in found
            if one.document.user_id in ("", system.store.named(user))
        ]

    @server.tool()
    def forget(ids: list[str]) -> str:
        """Deletes texts by their ids."""
        system.forget(user, ids=ids)
        return f"deleted: {len(ids)}"

    return server
