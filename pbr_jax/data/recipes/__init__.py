"""Where the data of the docs' tables comes from, and how it was cut: `pbr-jax data recipe`.

A recipe names the files to download, with their addresses and, where they are known, SHA-256 hashes, and the
function that makes a benchmark's folder of them. `hashes.json` has the hashes of what the tables were
made with.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from pbr_jax.base.files import cache_folder, new_folder, parse_json
from pbr_jax.base.types import UserError
from pbr_jax.data.recipes import cuts
from pbr_jax.data.recipes.download import download, sha256

Cut = Callable[[Path, Path], None]
"""Reads downloaded files in the first folder and writes a benchmark into the second."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The data of one benchmark."""

    benchmark: str  # what `benchmark.name` is
    what: str  # one line
    page: str  # of the data's authors
    licence: str
    sources: Mapping[str, str | None]  # file -> address; None: the page has it, for people
    cut: Cut | None = None  # None: the files are taken as they are
    note: str = ""  # what of the cut is known, and what is not


@cache
def hashes() -> Mapping[str, Mapping[str, str]]:
    """Recipe -> file -> SHA-256 of what the tables were made with."""
    return parse_json(resources.files(__name__).joinpath("hashes.json").read_bytes())


_LAMP = "https://ciir.cs.umass.edu/downloads/LaMP/LaMP_7/dev"
_AMAZON = "http://snap.stanford.edu/data/amazon/productGraph/categoryFiles"

_CUT = {
    "lamp_7": Recipe(
        benchmark="lamp_7",
        what="tweets: 900 training users and 200 others of LaMP-7's user split",
        page="https://lamp-benchmark.github.io",
        licence="CC BY-NC-SA 4.0",
        sources={name: f"{_LAMP}/{name}" for name in ("dev_questions.json", "dev_outputs.json")},
        cut=cuts.lamp_7,
        note="The official dev file is divided anew by users; the test file has no public labels.",
    ),
    "headlines": Recipe(
        benchmark="lamp_4",
        what="news headlines by author, in LaMP-4's format: 48 training authors and 23 others",
        page="https://www.kaggle.com/datasets/rmisra/news-category-dataset",
        licence="CC BY 4.0",
        sources={"News_Category_Dataset_v2.json": None},
        cut=cuts.headlines,
        note="How the authors of the tables were numbered is not known; here the order is that of names.",
    ),
    "reviews": Recipe(
        benchmark="lamp_3",
        what="reviews of musical instruments, in LaMP-3's format: 800 training users and 200 others",
        page="https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
        licence="none is stated; for research",
        sources={name: f"{_AMAZON}/{name}" for name in ("reviews_Musical_Instruments_5.json.gz",)},
        cut=cuts.reviews,
        note="How the reviewers of the tables were numbered is not known; here in the order of the file.",
    ),
    "locomo_sessions": Recipe(
        benchmark="longmemeval",
        what="LoCoMo's questions about one speaker, in LongMemEval's schema",
        page="https://github.com/snap-research/locomo",
        licence="CC BY-NC 4.0",
        sources={"locomo_dev.json": None},
        note="The conversion is not public; --check says whether a file is that of the tables.",
    ),
}

# name, which is that of the benchmark too -> what it is, repository on GitHub, branch and folder, licence
_RELEASED = {
    "locomo": (
        "LoCoMo as released: ten long conversations", "snap-research/locomo", "main/data", "CC BY-NC 4.0",
    ),
    "realtalk": (
        "REALTALK as released: seven of its ten chats", "danny911kr/REALTALK", "main/data", "see the page",
    ),
    "prefeval": (
        "PrefEval as released: preferences in 14 topics", "amazon-science/PrefEval", "main/benchmark_dataset",
        "CC BY-NC 4.0",
    ),
    "personabench": (
        "PersonaBench as released: six users, four levels of noise", "SalesforceAIResearch/personabench",
        "main/eval_data", "see the page",
    ),
    "nq_open": (
        "Natural Questions, open: 3,610 questions and answers", "google-research-datasets/natural-questions",
        "master/nq_open", "CC BY-SA 3.0",
    ),
    "web_questions": (
        "WebQuestions", "brmson/dataset-factoid-webquestions", "master/main", "CC BY 4.0",
    ),
    "xquad": (
        "XQuAD: 240 paragraphs and 1,190 questions in English, German and Chinese", "google-deepmind/xquad",
        "master", "CC BY-SA 4.0",
    ),
    "sgd": (
        "Schema-Guided Dialogue: a part of the test split",
        "google-research-datasets/dstc8-schema-guided-dialogue", "master", "CC BY-SA 4.0",
    ),
}  # fmt: skip


@cache
def recipes() -> Mapping[str, Recipe]:
    """Every recipe by its name."""
    taken = {}  # files that are taken as they are
    for name, (what, repository, under, licence) in _RELEASED.items():
        folder = f"https://raw.githubusercontent.com/{repository}/{under}"
        taken[name] = Recipe(
            benchmark=name,
            what=what,
            page=f"https://github.com/{repository}",
            licence=licence,
            sources={file: f"{folder}/{quote(file)}" for file in hashes()[name]},
        )
    return _CUT | taken


def named(name: str) -> Recipe:
    """A recipe; UserError for a name that there is not."""
    if name not in recipes():
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(sorted(recipes()))}")
    return recipes()[name]


def described(name: str) -> str:
    """What a recipe does: data, page, licence, addresses, and what is known of its cut."""
    recipe = named(name)
    rule = " ".join((recipe.cut.__doc__ or "").split()) if recipe.cut else "The files are taken as they are."
    sources = [f"  {file}: {address or 'by hand from the page'}" for file, address in recipe.sources.items()]
    shown = [*sources[:5], f"  and {len(sources) - 5} more"] if len(sources) > 6 else sources
    lines = [recipe.what, f"page: {recipe.page}", f"licence: {recipe.licence}", "files:", *shown, rule]
    return "\n".join([*lines, *([recipe.note] if recipe.note else [])])


def make(name: str, out: Path, given: Path | None = None) -> list[str]:
    """Downloads a recipe's files, or takes them from the folder `given`, and writes the benchmark to `out`.

    Returns what is to be said of it, as `check`.

    Raises UserError: `out` exists, a file is missing, a hash differs, no connection.
    """
    recipe = named(name)
    folder = given or cache_folder() / "downloads" / name
    with new_folder(out) as partial:
        for file, address in recipe.sources.items():
            known = hashes()[name].get(file) if recipe.cut is None else None
            if given is None and address is not None:
                download(address, folder / file, known)
            if not (path := folder / file).is_file():
                raise UserError(
                    f"{path} is not there; get {path.name} from {recipe.page} and run "
                    f"pbr-jax data recipe {name} --from {path.parent} --out FOLDER"
                )
            if recipe.cut is None:
                target = partial / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if recipe.cut is not None:
            recipe.cut(folder, partial)
    return check(name, out)


def check(name: str, folder: Path) -> list[str]:
    """A line for each file that is missing or differs from what the tables were made with, then a verdict.

    Raises UserError where `folder` is no folder.
    """
    named(name)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the one that `data recipe {name} --out` wrote")
    found = []
    for file, wanted in hashes()[name].items():
        path = folder / file
        if not path.is_file():
            found.append(f"{file}: missing")
        elif sha256(path) != wanted:
            found.append(f"{file}: differs from the file of the tables")
    count = len(hashes()[name])
    verdict = f"{count - len(found)} of {count} files are those that the tables were made with"
    return [*found, verdict]
