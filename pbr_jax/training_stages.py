"""The stages that learn: users as vectors; retriever and reranker, taught by the language model's feedback.

    embed ──► user_encoder
    embed, users ──► feedback ──► retriever ──► embed again ──► feedback ──► reranker

A config that tunes nothing passes none of them, and loads no training library: `train` is imported where it
is used. Retriever and reranker learn from questions of the training split, part of which is held out to
choose the best step; the evaluated split is never looked at.
"""

import dataclasses
import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from pbr_jax.artefacts import Artefact, write_text
from pbr_jax.config import Config, to_dict
from pbr_jax.data import expansions
from pbr_jax.data.views import Rates
from pbr_jax.data_stages import DataStages, chunks, enable_compilation_cache, line, vectors
from pbr_jax.feedback import llm_feedback
from pbr_jax.feedback.llm_feedback import Feedback
from pbr_jax.models.cross_encoder import cross_encoder
from pbr_jax.models.dual_encoder import dual_encoder, personalize
from pbr_jax.models.params_file import load_params, save_params
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.models.user_transformer import UserTransformerConfig
from pbr_jax.pipeline import expand, generate, pipeline, users
from pbr_jax.pipeline.pipeline import Examples, Personalize, Resources
from pbr_jax.pipeline.rerank import Reranker
from pbr_jax.pipeline.users import Users
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Example, Params

_PARAMS = "params.safetensors"


class TrainedStages(DataStages):
    """Everything that is trained, and the resources that the pipeline's slots stand on."""

    def check(self) -> None:
        """Finds out before the work, not after hours of it, what a late stage would refuse.

        Raises:
          UserError: no such reranker, or one that cannot judge; a batch that the devices cannot divide.
        """
        from pbr_jax.train import sharding

        config = self.config
        if config.select.method == "cross_encoder":
            _ = self._reranker
        trained = {
            "user_encoder": config.neighbours.method == "contrastive",
            "retriever": config.retrieve.method == "tuned",
            "reranker": config.select.method == "tuned",
        }
        if trained["reranker"]:
            locate(config.reranker.model)
        if self.taught:
            llm_feedback.metric(self.task, config.feedback.metric)
        for part, wanted in trained.items():
            if wanted:
                options = getattr(config, part).training
                mesh = sharding.data_mesh(options.devices)
                sharding.parts(options.batch_size, options.accumulate, mesh)

    # -- users -----------------------------------------------------------------------------------

    @cached_property
    def _user_model(self) -> UserTransformerConfig:
        o = self.config.user_encoder
        return UserTransformerConfig(
            width=self.encoder.dim,
            max_documents=o.max_documents,
            num_layers=o.num_layers,
            num_heads=o.num_heads,
            dropout=o.dropout,
        )

    @cached_property
    def user_encoder(self) -> Artefact:
        """Parameters of the user encoder, trained on the histories of both splits' users, without labels."""
        from pbr_jax.train import user_encoder

        o, seed = self.config.user_encoder, self.config.seed
        rates = Rates(o.crop, o.mask, o.reorder)
        objective = user_encoder.Objective(rates, o.loss, o.temperature, o.train_embeddings)

        def make(folder: Path) -> None:
            enable_compilation_cache()
            base, store = vectors(self.embeddings), self.store
            histories = [users.oldest_first(store, store.history(user)) for user in store.users]
            fitted = user_encoder.train(
                histories, base, self._user_model, objective, o.training, folder, seed=seed
            )
            _keep(fitted.params, folder)

        key = {"data": self.data.key, "embeddings": self.embeddings.key, "options": to_dict(o), "seed": seed}
        return self._obtain("user_encoder", key, make)

    @cached_property
    def _users_key(self) -> dict[str, Any]:
        """What users' vectors depend on."""
        trained = self.config.neighbours.method != "mean"
        return {
            "encoder": self.user_encoder.key if trained else "mean",
            "embeddings": self.embeddings.key,
            "snapshots": self.config.neighbours.snapshots,
        }

    @cached_property
    def users(self) -> Users:
        """Users as vectors: the trained encoder's, or means where `neighbours.method` asks for those."""
        embeddings, encode = vectors(self.embeddings), users.mean
        if self.config.neighbours.method != "mean":
            params = load_params(self.user_encoder.path / _PARAMS)
            embeddings = np.asarray(params.pop("documents", embeddings))
            encode = users.transformer(params, self._user_model)
        return Users(self.store, embeddings, self.encoder, encode, self.config.neighbours.snapshots)

    # -- feedback --------------------------------------------------------------------------------

    def _feedback(self, config: Config, name: str) -> Artefact:
        """The value of every candidate that `config` retrieves for the training questions."""
        llm = self.llm
        if llm is None:
            raise ValueError("feedback needs a language model; none is loaded")
        options = config.feedback

        def make(folder: Path) -> None:
            examples = self._taught_examples
            depth = options.candidates or config.retrieve.k
            resources = self._resources(config)
            parts = pipeline.build(config, resources, depth)
            answer = generate.ipa(_answering_feedback(config), resources)
            found: list[Feedback] = []
            with tqdm(
                desc="feedback", unit="question", total=len(examples), disable=None, leave=False
            ) as bar:
                for chunk in chunks(examples, _TOGETHER):
                    rankings = pipeline.rank(parts, chunk, config.collaboration)
                    values = llm_feedback.metric(self.task, options.metric)
                    found += llm_feedback.collect(self.task, parts.prompt, answer, chunk, rankings, values)
                    bar.update(len(chunk))
            lines = [
                {"id": e.id, "rows": f.rows.tolist(), "values": f.values.tolist()}
                for e, f in zip(examples, found, strict=True)
            ]
            write_text(folder / "feedback.jsonl", "".join(map(line, lines)))

        key = {
            "rank": self._rank_key(config),
            "llm": llm.fingerprint,
            "batch_size": config.llm.batch_size,
            "prompt": to_dict(config.prompt),
            "generate": to_dict(config.generate),
            "feedback": to_dict(options),
        }
        return self._obtain("feedback", key, make, name)

    @cached_property
    def _taught_examples(self) -> list[Example]:
        """The training questions that are learned from, drawn by the seed."""
        total, limit = self.store.summary.training, self.config.feedback.limit
        chosen = set(np.random.default_rng([self.config.seed, 3]).permutation(total)[:limit].tolist())
        return [e for i, e in enumerate(self.store.examples(training=True)) if i in chosen]

    def _read(self, feedback: Artefact) -> list[Feedback]:
        with (feedback.path / "feedback.jsonl").open(encoding="utf-8") as file:
            records = map(json.loads, file)
            return [
                Feedback(np.array(r["rows"], np.int64), np.array(r["values"], np.float32)) for r in records
            ]

    def _texts(self, rows: np.ndarray) -> list[str]:
        return [document.text for document in self.store.documents(rows)]

    # -- retriever -------------------------------------------------------------------------------

    @cached_property
    def retriever(self) -> Artefact:
        """Parameters of the dual encoder, tuned on what the untuned one finds."""
        from pbr_jax.train import retriever as training

        options = self.config.retriever
        untuned = _changed(self.config, retrieve="dense")
        feedback = self._feedback(untuned, "feedback_retriever")
        personal = options.alpha > 0

        def make(folder: Path) -> None:
            enable_compilation_cache()
            examples = self._taught_examples
            fitted = training.train(
                [example.query for example in examples],
                self.users.asking(examples) if personal else None,
                self._read(feedback),
                self._texts,
                self.encoder,
                options,
                folder,
                seed=self.config.seed,
            )
            _keep(fitted.params, folder)

        key = {
            "feedback": feedback.key,
            "encoder": self.encoder.fingerprint,
            "users": self._users_key if personal else None,
            "options": to_dict(options),
            "seed": self.config.seed,
        }
        return self._obtain("retriever", key, make)

    @cached_property
    def _tuned_encoder(self) -> tuple[TextEncoder, Params]:
        """The tuned tower as a text encoder, and all parameters of the dual encoder."""
        params = load_params(self.retriever.path / _PARAMS)
        return TextEncoder(self.config.encoder, tuned=(params["tower"], self.retriever.key)), params

    @cached_property
    def tuned_embeddings(self) -> Artefact:
        """One vector of the tuned encoder for each document."""
        return self._embed(self._tuned_encoder[0], "embed_tuned")

    @cached_property
    def _personalize(self) -> Personalize | None:
        from pbr_jax.train.retriever import model_config

        options = self.config.retriever
        if not options.alpha:
            return None
        encoder, params = self._tuned_encoder
        config = model_config(encoder, options, self._user_model.width)
        project = jax.jit(lambda params, users: dual_encoder(config).apply(params, users=users).users)

        def with_users(examples: Examples, queries: np.ndarray) -> np.ndarray:
            preferred = project(params, jnp.asarray(self.users.asking(examples)))
            return np.asarray(personalize(jnp.asarray(queries), preferred, options.alpha))

        return with_users

    # -- reranker --------------------------------------------------------------------------------

    @cached_property
    def reranker(self) -> Artefact:
        """Parameters of the cross-encoder, tuned on what the config's retriever finds."""
        from pbr_jax.train import reranker as training

        options = self.config.reranker
        feedback = self._feedback(_changed(self.config, select="top_k"), "feedback_reranker")

        def make(folder: Path) -> None:
            enable_compilation_cache()
            examples = self._taught_examples
            fitted = training.train(
                [example.query for example in examples],
                self.users.asking(examples) if options.users else None,
                self._read(feedback),
                self._texts,
                options,
                folder,
                seed=self.config.seed,
            )
            _keep(fitted.params, folder)

        key = {
            "feedback": feedback.key,
            "model": fingerprint(locate(options.model)),
            "users": self._users_key if options.users else None,
            "options": {**to_dict(options), "model": ""},
            "seed": self.config.seed,
        }
        return self._obtain("reranker", key, make)

    @cached_property
    def _reranker(self) -> Reranker:
        """The cross-encoder that selects: tuned, or as it was pretrained."""
        from pbr_jax.train.reranker import load

        options, folder = self.config.reranker, locate(self.config.reranker.model)
        if self.config.select.method != "tuned":
            model, params, config = load(options, None, self.config.seed)
            return Reranker(model, params, config, folder, options.max_length, None)
        width = self._user_model.width if options.users else 0
        config = dataclasses.replace(load(options, width, self.config.seed)[2], head=False)
        params = load_params(self.reranker.path / _PARAMS)
        known = self.users if options.users else None
        return Reranker(cross_encoder(config), params, config, folder, options.max_length, known)

    # -- what the slots stand on -----------------------------------------------------------------

    def _resources(self, config: Config) -> Resources:
        """The resources of this config, or of one that differs in what it leaves untuned."""
        enable_compilation_cache()
        encoder = embeddings = known = personal = None
        if config.retrieve.method == "tuned":
            encoder, embeddings = self._tuned_encoder[0], vectors(self.tuned_embeddings)
            personal = self._personalize
        elif self._dense(config):
            encoder, embeddings = self.encoder, vectors(self.embeddings)
        if config.neighbours.method in ("contrastive", "mean"):
            known = self.users
        return Resources(
            self.task,
            self.store,
            encoder,
            embeddings,
            self.llm,
            users=known,
            personalize=personal,
            reranker=self._reranker if config.select.method in ("tuned", "cross_encoder") else None,
            tally=self._tally,
        )

    def _rank_key(self, config: Config) -> dict[str, Any]:
        """What the rankings of a config depend on."""
        slots = ("expand", "neighbours", "retrieve", "select")
        retrieve, select, neighbours = config.retrieve.method, config.select.method, config.neighbours.method
        return {
            "data": self.data.key,
            "embeddings": self.embeddings.key if retrieve != "tuned" and self._dense(config) else None,
            "retriever": self.retriever.key if retrieve == "tuned" else None,
            "users": self._users_key if neighbours in ("contrastive", "mean") else None,
            "reranker": self.reranker.key if select == "tuned" else None,
            "cross_encoder": self._pretrained_reranker if select == "cross_encoder" else None,
            "seed": config.seed,
            "collaboration": config.collaboration,
            **self._expansion(config),
            **{slot: to_dict(getattr(config, slot)) for slot in slots},
        }

    def _dense(self, config: Config) -> bool:
        """Whether vectors of the documents are wanted."""
        return config.retrieve.method in ("dense", "tuned") or expand.uses_vectors(config.expand)

    def _expansion(self, config: Config) -> dict[str, Any]:
        """What expanded queries depend on beside the config's slot."""
        key: dict[str, Any] = {}
        if self.llm is not None and expand.uses_llm(config.expand):
            # The batch plan can move the last bit of a logit.
            key |= {"llm": self.llm.fingerprint, "batch_size": config.llm.batch_size}
        if config.expand.released:
            key["released"] = expansions.fingerprint(Path(config.expand.released))
        return key

    @cached_property
    def _pretrained_reranker(self) -> list[Any]:
        return [fingerprint(locate(self.config.reranker.model)), self.config.reranker.max_length]


_TOGETHER = 64  # questions whose candidates are answered together


def _changed(config: Config, *, retrieve: str | None = None, select: str | None = "top_k") -> Config:
    """The config with other methods; training questions are not expanded."""
    changes: dict[str, Any] = {"expand": dataclasses.replace(config.expand, method="none")}
    if retrieve is not None:
        changes["retrieve"] = dataclasses.replace(config.retrieve, method=retrieve)
    if select is not None:
        changes["select"] = dataclasses.replace(config.select, method=select, own=None)
    return dataclasses.replace(config, **changes)


def _answering_feedback(config: Config) -> Config:
    options = config.feedback
    answers = dataclasses.replace(
        config.generate,
        num_beams=options.num_beams,
        max_new_tokens=options.max_new_tokens or config.generate.max_new_tokens,
    )
    return dataclasses.replace(config, generate=answers)


def _keep(params: Params, folder: Path) -> None:
    """The parameters that training found, and metrics.jsonl; its checkpoints have done their work."""
    save_params(params, folder / f".{_PARAMS}")
    (folder / f".{_PARAMS}").replace(folder / _PARAMS)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
