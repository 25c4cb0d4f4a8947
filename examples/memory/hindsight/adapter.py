"""Hindsight (hindsight-api-slim 1.1.0) behind `retrieve.method external`, without a language model.

python -m venv VENV && VENV/bin/pip install 'hindsight-api-slim[embedded-db]==1.1.0'

With the provider `none` Hindsight keeps chunks of each session and extracts no facts. A user is a bank and a
session a document. Vectors come from the encoder of the run. What it finds by vectors, words and dates is put
together by reciprocal rank fusion, since its cross-encoder would have to be downloaded. PostgreSQL refuses to
run as root, so an ordinary user has to start this.
"""

import asyncio
import atexit
import hashlib
import os
from datetime import datetime

TOKENS = 1_000_000  # of what a search may give; k is the bound


class Memory:
    def __init__(self, folder, settings):
        os.environ.update(
            HINDSIGHT_API_DATABASE_URL="pg0://memory",  # under the home, which is the folder
            HINDSIGHT_API_LLM_PROVIDER="none",
            HINDSIGHT_API_EMBEDDINGS_PROVIDER="openai",
            HINDSIGHT_API_EMBEDDINGS_OPENAI_BASE_URL=settings["base_url"],
            HINDSIGHT_API_EMBEDDINGS_OPENAI_MODEL="encoder",
            HINDSIGHT_API_EMBEDDINGS_OPENAI_API_KEY="none",
            HINDSIGHT_API_RERANKER_PROVIDER="rrf",
        )
        self.loop, self.engine = asyncio.new_event_loop(), None
        atexit.register(self.close)

    def wait(self, call):
        return self.loop.run_until_complete(call)

    def ready(self):
        if self.engine is None:
            from hindsight_api.engine.memory_engine import MemoryEngine  # type: ignore
            from hindsight_api.engine.task_backend import SyncTaskBackend  # type: ignore
            from hindsight_api.models import RequestContext  # type: ignore

            self.engine, self.asked = MemoryEngine(task_backend=SyncTaskBackend()), RequestContext()
            self.wait(self.engine.initialize())
        return self.engine

    def add(self, user, documents):
        told = [
            {
                "content": document["text"],
                "document_id": document["id"],
                "event_date": document["time"] and datetime.fromisoformat(document["time"]),
            }
            for document in documents
        ]
        self.wait(self.ready().retain_batch_async(bank(user), told, request_context=self.asked))

    def search(self, user, query, k, time):
        engine, at = self.ready(), time and datetime.fromisoformat(time)
        self.wait(engine.ensure_bank_profile(bank(user), request_context=self.asked))
        found = self.wait(
            engine.recall_async(
                bank(user), query, max_tokens=TOKENS, question_date=at, request_context=self.asked
            )
        )
        return [
            {"text": one.text, "sources": [one.document_id], "score": one.scores.final}
            for one in found.results[:k]
        ]

    def delete(self, user, ids):
        engine = self.ready()
        if ids is None:
            self.wait(engine.delete_bank(bank(user), request_context=self.asked))
        for id in ids or ():
            self.wait(engine.delete_document(id, bank(user), request_context=self.asked))

    def close(self):
        if self.engine is not None:
            from pg0 import Pg0  # type: ignore

            self.wait(self.engine.close())
            Pg0(name="memory").stop()  # also one that a killed process had started
            self.engine = None


def bank(user):
    """A name that Hindsight accepts for any user."""
    return "user_" + hashlib.sha256(user.encode()).hexdigest()[:16]
