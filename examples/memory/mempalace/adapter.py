"""mempalace 3.11.0 behind `retrieve.method external`: a session is filed by the tools that agents call.

python -m venv VENV && VENV/bin/pip install mempalace==3.11.0

A user is a wing and a session a source file, whose text mempalace cuts into drawers. Vectors come from the
encoder of the run, and no language model is called.
"""

import hashlib
import os


class Memory:
    def __init__(self, folder, settings):
        os.environ.update(
            MEMPALACE_PALACE_PATH=os.path.join(folder, "palace"),
            MEMPALACE_CONFIG_DIR=os.path.join(folder, "config"),
            MEMPALACE_EMBEDDING_MODEL="openai-compat",
            MEMPALACE_EMBEDDING_API_URL=settings["base_url"],
            MEMPALACE_EMBEDDING_API_MODEL="encoder",
            MEMPALACE_EMBEDDING_API_KEY="none",
            ANONYMIZED_TELEMETRY="False",
        )
        from mempalace import mcp_server  # type: ignore

        self.tools = mcp_server

    def add(self, user, documents):
        for document in documents:
            source = f"{wing(user)}/{document['id']}"
            found = self.tools.tool_add_drawer(wing(user), "sessions", document["text"], source_file=source)
            checked(found)

    def search(self, user, query, k, time):
        found = checked(self.tools.tool_search(query, limit=k, wing=wing(user)))
        return [
            {
                "text": one["text"],
                "sources": [one["source_file"].removeprefix(f"{wing(user)}/")],
                "score": one["similarity"],
            }
            for one in found["results"]
        ]

    def delete(self, user, ids):
        for id in ids or ():
            checked(self.tools.tool_delete_by_source(f"{wing(user)}/{id}", dry_run=False))
        while ids is None and (filed := checked(self.tools.tool_list_drawers(wing=wing(user)))["drawers"]):
            checked(self.tools.tool_delete_drawers([one["drawer_id"] for one in filed]))


def wing(user):
    """A name that mempalace accepts for any user."""
    return "user_" + hashlib.sha256(user.encode()).hexdigest()[:16]


def checked(found):
    """The value of a tool, which tells of a failure in the same place."""
    if found.get("error") or found.get("success") is False:
        raise RuntimeError(str(found.get("error") or found)[:300])
    return found
