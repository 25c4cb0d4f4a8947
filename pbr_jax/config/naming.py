"""What a run is called in tables where its methods are not those of the config that named it."""

import dataclasses
from collections.abc import Mapping

from pbr_jax.config.schema import SLOTS, Config
from pbr_jax.methods.retrieve import Fused
from pbr_jax.options import Retrieve, names_of

_SECTIONS = (*SLOTS, "generator")
_PLAIN = {"auto", "none", "ipa", "label"}
"""Of generate.method: an answer to one prompt, or none. That is how a system is measured, not another one."""


def overridden(before: Config, after: Config) -> dict[str, str]:
    """The methods of the second config that are not the first one's, by their fields."""
    methods = {}
    for section in _SECTIONS:
        old, new = getattr(before, section).method, getattr(after, section).method
        if old != new and not (section == "generate" and {old, new} <= _PLAIN):
            methods[f"{section}.method"] = new
    new = _parts(after.retrieve)
    if new and new != (_parts(before.retrieve) or " ".join(names_of(Fused().of))):
        methods["retrieve.of"] = new
    return methods


def _parts(retrieve: Retrieve) -> str:
    """The names of the retrievers that one is made of; "": it is made of none."""
    return " ".join(names_of(getattr(retrieve, "of", ())))


def named(config: Config, before: Config, methods: Mapping[str, str]) -> Config:
    """The config, called after these methods too: "dense, retrieve.method bm25".

    What the name says of methods that `before` had in their places is left out.
    """
    if not methods:
        return config
    system = config.system
    for field in methods:
        method = getattr(before, field.partition(".")[0])
        told = _parts(method) if field == "retrieve.of" else method.method
        system = system.replace(f", {field} {told}", "")
    settings = [f"{field} {method}" for field, method in methods.items()]
    return dataclasses.replace(config, system=", ".join([system, *settings]))
