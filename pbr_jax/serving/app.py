"""The web application of a system: OpenAI's protocol, users' documents, and a page.

A user is who the caller's key says. Only a trusted caller names the user of a request, in the header
`X-PBR-User` or the field `user`. Without keys every caller is trusted, so the server must be on a machine's
own address. Errors and logs repeat nothing of a request.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

import numpy as np

from pbr_jax.base.types import Candidate, Document, UserError
from pbr_jax.llm import reads
from pbr_jax.llm.protocol import TooLong
from pbr_jax.serving.guard import Fault, Guard, Limits, Metrics, Work
from pbr_jax.serving.keys import Caller, Keys, is_same
from pbr_jax.system import Reply, System

HEADER = "X-PBR-User"
_SAFE = {"Content-Security-Policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
         "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
         "frame-ancestors 'none'", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
         "Cache-Control": "no-store"}  # fmt: skip
_PLAIN = "-without-history"  # behind the model's name: no documents are shown


class Service:
    """A system and what its server knows: `name` is the model's, `keys` are those of callers, or None."""

    def __init__(self, system: System, name: str, keys: Keys | None, limits: Limits) -> None:
        self.system, self.name, self.keys = system, name, keys
        self.work, self.metrics, self.made = Work(limits), Metrics(), int(time.time())

    def caller(self, authorization: str | None) -> Caller:
        """Who calls. Raises Fault 401."""
        if self.keys is None:
            return Caller(None)
        scheme, _, key = (authorization or "").partition(" ")
        found = self.keys.caller(key.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise Fault(401, "a key is wanted in the header Authorization: Bearer KEY, and this is none")
        return found

    def asking(self, caller: Caller, named: str | None) -> str:
        """The user of a request. What an untrusted caller names does not count."""
        if caller.user is not None:
            return caller.user
        if not named:
            raise Fault(400, f"a user is wanted in the header {HEADER} or the field user")
        return named

    def owner(self, asked: tuple[Caller, str | None], path: str) -> str:
        """The user of a path; `me` is the one who asks. Raises Fault 403 for another user's."""
        caller, named = asked
        if path == "me":
            return self.asking(caller, named)
        if caller.user is not None and not is_same(caller.user, path):
            raise Fault(403, "this key is not of the user in the path")
        return caller.user or path

    async def run(self, function: Any, *values: Any, **options: Any) -> Any:
        """What the system returns. Its errors become faults without their texts."""
        try:
            return await self.work(function, *values, **options)
        except UserError as error:
            if isinstance(error.__cause__, TooLong):
                raise Fault(400, "the prompt is too long for the model") from None
            with contextlib.suppress(UserError):
                self.system.check()
                raise Fault(400, "the system cannot do this with what was sent") from None
            raise Fault(503, "the run or its data have changed; start the server anew") from None


def application(
    system: System,
    *,
    name: str = "pbr-jax",
    keys: Keys | None = None,
    limits: Limits = Limits(),  # noqa: B008
    hosts: Sequence[str] = (),
) -> Any:
    """The ASGI application. Needs the package `fastapi`.

    Args:
      name: of the model, for clients.
      keys: of callers. None: all are trusted.
      hosts: the names under which the server may be called; (): any.
    """
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.exceptions import HTTPException

    service = Service(system, name, keys, limits)
    app = FastAPI(title="pbr-jax", docs_url=None, redoc_url=None)

    async def failed(_: Any, error: Exception) -> Any:
        if isinstance(error, RequestValidationError):
            error = Fault(400, "the request is malformed; /openapi.json describes it")
        elif isinstance(error, HTTPException):
            error = Fault(error.status_code, "not found" if error.status_code == 404 else "not possible")
        assert isinstance(error, Fault)
        headers = {"Retry-After": "1"} if error.status == 429 else None
        return JSONResponse(error.body, error.status, headers)

    for kind in (Fault, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, failed)

    @app.get("/healthz")
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Any:
        return PlainTextResponse(service.metrics.text(service.work.under_way))

    page = files("pbr_jax.serving").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/")
    async def home() -> Any:
        return HTMLResponse(page, headers=_SAFE)

    _add_openai(app, service)
    _add_documents(app, service)
    _add_feedback(app, service)
    return Guard(app, limits=limits, metrics=service.metrics, admit=service.caller, hosts=hosts)


def _callers(service: Service) -> Any:
    """The default value that gives a route its caller and the user that the header names."""
    from fastapi import Depends, Header

    def found(
        authorization: Annotated[str | None, Header()] = None,
        x_pbr_user: Annotated[str | None, Header()] = None,
    ) -> tuple[Caller, str | None]:
        try:  # a header's bytes are UTF-8 here
            named = x_pbr_user and x_pbr_user.encode("latin-1").decode("utf-8")
        except UnicodeError:
            raise Fault(400, f"the header {HEADER} is not UTF-8") from None
        return service.caller(authorization), named

    return Depends(found)


def _add_openai(app: Any, service: Service) -> None:
    """OpenAI's protocol: chat completions, embeddings and models."""
    from fastapi.responses import StreamingResponse
    from pydantic import BaseModel, Field

    who = _callers(service)

    class Message(BaseModel):
        role: str
        content: str | list[dict[str, Any]] | None = None

    class Chat(BaseModel):
        messages: list[Message] = Field(min_length=1)
        model: str | None = None
        user: str | None = None
        stream: bool = False
        n: int = Field(1, ge=1, le=1)

    class Texts(BaseModel):
        input: str | list[str] = Field(min_length=1, max_length=2048 * 512)
        encoding_format: str = Field("float", pattern="^(float|base64)$")

    @app.post("/v1/chat/completions")
    async def chat(body: Chat, asked: Any = who) -> Any:
        user = service.asking(asked[0], asked[1] or body.user)
        model, plain = body.model or service.name, (body.model or "").endswith(_PLAIN)
        question = _question([(one.role, one.content) for one in body.messages])
        ask = partial(service.run, service.system.ask, user, question, history=not plain)
        complete = partial(_completion, service.system, model=model, user=user)
        if not body.stream:
            return complete(await ask())
        return StreamingResponse(await _streamed(ask, complete, model), media_type="text/event-stream")

    @app.post("/v1/embeddings")
    async def embed(body: Texts, asked: Any = who) -> Any:
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors: np.ndarray = await service.run(service.system.encode, texts)
        coded = body.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _coded(one) if coded else one.tolist()}
            for i, one in enumerate(vectors)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return {"object": "list", "data": data, "model": service.name, "usage": usage}

    @app.get("/v1/models")
    async def models(asked: Any = who) -> Any:
        made = {"object": "model", "created": service.made, "owned_by": "pbr-jax"}
        return {"object": "list", "data": [{"id": service.name + end, **made} for end in ("", _PLAIN)]}


def _coded(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _question(messages: Sequence[tuple[str, str | list[dict[str, Any]] | None]]) -> str:
    """The text that is asked: the last message, after the earlier ones if there are any."""
    texts = []
    for role, content in messages:
        if isinstance(content, list):
            if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
                raise Fault(400, "messages.content has parts that are no text")
            content = "\n".join(part["text"] for part in content)
        if content and content.strip():
            texts.append((role, content.strip()))
    if not texts or texts[-1][0] != "user":
        raise Fault(400, "the last of the messages must be a user's, with text")
    return texts[0][1] if len(texts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in texts)


def _completion(system: System, reply: Reply, model: str, user: str) -> dict[str, Any]:
    """A reply as OpenAI's clients read it; `documents` and `note` are ours."""
    written = system.llm.count(reply.text)
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": written}
    message = {"role": "assistant", "content": reply.text}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
        "documents": _shown(reply.documents, user, system),
        "note": reply.note,
    }


async def _streamed(
    ask: Callable[..., Awaitable[Reply]], complete: Callable[[Reply], dict[str, Any]], model: str
) -> AsyncIterator[str]:
    """A completion as a stream of events, once there is something to send. Raises Fault if there is not."""
    loop, texts = asyncio.get_running_loop(), asyncio.Queue[str | None]()
    reply = asyncio.ensure_future(ask(on_text=partial(loop.call_soon_threadsafe, texts.put_nowait)))

    def ended(reply: asyncio.Future[Reply]) -> None:
        if not reply.cancelled():
            reply.exception()  # else asyncio logs the error of a caller who has left
        texts.put_nowait(None)

    reply.add_done_callback(ended)
    first = await texts.get()
    if first is None:
        await reply
    return _events(first, texts, reply, complete, model)


async def _events(
    text: str | None,
    texts: "asyncio.Queue[str | None]",
    reply: Awaitable[Reply],
    complete: Callable[[Reply], dict[str, Any]],
    model: str,
) -> AsyncIterator[str]:
    """The role, the parts of the text, and the end with what else a completion has."""
    kind, number = "chat.completion.chunk", f"chatcmpl-{uuid.uuid4().hex}"
    same = {"id": number, "object": kind, "created": int(time.time()), "model": model}

    def event(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
        part = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps({**more, **same, 'choices': [part]})}\n\n"

    yield event({"role": "assistant", "content": ""})
    while text is not None:
        yield event({"content": text})
        text = await texts.get()
    try:
        yield event({}, "stop", **complete(await reply))
    except Fault as fault:
        yield f"data: {json.dumps(fault.body)}\n\n"
    yield "data: [DONE]\n\n"


def _shown(candidates: Sequence[Candidate], user: str, system: System) -> list[dict[str, Any]]:
    """Candidates as JSON. Of another user's document, which a config may allow in prompts, only the score is
    told."""
    own = {"", system.store.named(user)}
    return [
        {"score": one.score, "scores": dict(one.scores), **_told(one.document)}
        if one.document.user_id in own
        else {"score": one.score, "of_another_user": True}
        for one in candidates
    ]


def _told(document: Document) -> dict[str, Any]:
    fields = {name: text for name, text in document.fields.items() if name != "text"}
    return {"id": document.id, "text": document.text, "time": document.time, "fields": fields,
            "shared": document.shared}  # fmt: skip


def _add_documents(app: Any, service: Service) -> None:
    """A user's documents."""
    from fastapi import Query
    from pydantic import BaseModel, Field

    who, system = _callers(service), service.system

    class Added(BaseModel):
        texts: list[str] = []
        records: list[dict[str, Any]] = []
        messages: list[dict[str, Any]] = []
        time: Annotated[float, Field(allow_inf_nan=False)] | str | None = None

    class Searched(BaseModel):
        text: str
        k: int | None = Field(None, ge=1)

    @app.get("/v1/users/{user}/documents")
    async def documents(user: str, asked: Any = who) -> Any:
        found = await service.run(system.documents, service.owner(asked, user))
        return {"documents": [*map(_told, found)]}

    @app.post("/v1/users/{user}/documents")
    async def add(user: str, body: Added, asked: Any = who) -> Any:
        name, made = service.owner(asked, user), []
        for entries in ([*body.texts, *body.records], body.messages):
            made += await service.run(system.add, name, entries, time=body.time) if entries else []
        return {"documents": [*map(_told, made)]}

    @app.delete("/v1/users/{user}/documents")
    async def delete(user: str, id: Annotated[list[str], Query(min_length=1)], asked: Any = who) -> Any:
        return await service.run(_forgotten, system, service.owner(asked, user), id)

    @app.post("/v1/users/{user}/search")
    async def search(user: str, body: Searched, asked: Any = who) -> Any:
        name = service.owner(asked, user)
        found = await service.run(system.search, name, body.text, body.k)
        return {"documents": _shown(found, name, system)}


def _add_feedback(app: Any, service: Service) -> None:
    """A user's remarks and ratings, export and deletion."""
    from pydantic import BaseModel, Field

    who, system = _callers(service), service.system

    class Feedback(BaseModel):
        remark: str | None = None
        request: str | None = None
        rating: int | None = Field(None, ge=-1, le=1)
        question: str | None = None
        documents: list[str] = []

    @app.post("/v1/users/{user}/feedback")
    async def feedback(user: str, body: Feedback, asked: Any = who) -> Any:
        name = service.owner(asked, user)
        if body.remark is not None:
            # Of two users the same id is not the same request.
            request = body.request and hashlib.sha256(f"{name}\0{body.request}".encode()).hexdigest()
            seen = await service.run(system.observe, name, body.remark, request=request)
            return seen._asdict() | {"request": body.request or seen.request}
        if body.rating is None or body.question is None:
            raise Fault(400, "a remark is wanted, or a rating with the question and the documents")
        return {"rated": await service.run(system.rate, name, body.question, body.documents, body.rating)}

    @app.get("/v1/users/{user}/export")
    async def export(user: str, asked: Any = who) -> Any:
        return await service.run(_exported, system, service.owner(asked, user))

    @app.delete("/v1/users/{user}")
    async def forget(user: str, asked: Any = who) -> Any:
        name = service.owner(asked, user)
        receipt = await service.run(_forgotten, system, name)
        return receipt | {"keys": 0 if service.keys is None else service.keys.remove(name)}


def _forgotten(system: System, user: str, ids: Sequence[str] | None = None) -> dict[str, Any]:
    """Deletes a user, or documents of one; the receipt. Raises Fault 404 for an unknown document."""
    there = {document.id for document in system.documents(user)}
    if missing := set(ids or ()) - there:
        raise Fault(404, f"{len(missing)} of these documents are not the user's; nothing was deleted")
    remarks = len(_remarks(system, user)) if ids is None else 0
    try:
        system.forget(user, ids)
    except UserError:
        if there or remarks or system.store.named(user) in system.users():
            raise  # else nothing is kept of the user, but what a killed process left
        reads.erase((), [system.store.named(user)])
    deleted = {"documents": len(there) if ids is None else len(set(ids)), "remarks": remarks}
    return {"deleted": deleted, "at": datetime.now(UTC).isoformat(timespec="seconds"), "not_reached": _LEFT}


_LEFT = ["the run's data, its results and its stages in the cache (pbr-jax forget)", "backups and copies",
         "what was sent to the server of a language model",
         "folders pbr_jax-* that killed processes left among the system's temporary files"]  # fmt: skip


def _remarks(system: System, user: str) -> list[Any]:
    log = system.remarks.log if system.remarks.exists else None
    return [] if log is None else log.remarks("user=?", system.store.named(user))


def _exported(system: System, user: str) -> dict[str, Any]:
    """All that a system has of a user."""
    kept = ("id", "at", "text", "state", "summary", "verdict", "route", "operation", "target")
    return {
        "documents": [*map(_told, system.documents(user))],
        "remarks": [{name: getattr(one, name) for name in kept} for one in _remarks(system, user)],
        "ratings": [one._asdict() for one in system.ratings(user)],
    }
