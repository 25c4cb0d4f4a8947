"""A made-up circle of friends, written to disk in LaMP's time-split format.

The world. Users live in latent cohorts. Everybody is asked what they will bring to an outing. A cohort
prefers some topics and has, for every topic, a habitual thing to bring, the tag ("the blue kite", ...), and a
style of answering: a greeting, a line, a sign-off. A user inherits the cohort's habits one by one or has
an own one instead. Every answer follows each habit only with probability `follow`. The question tells
nothing of them: an answer is no copy of it.

Three kinds of users, so that neither the own history nor similar users' histories are enough alone:

- *regulars* answered 12 to 40 times and left the cohort's habit on a third of the topics; they are
  asked about topics that their history shows at least twice;
- *newcomers* answered 1 to 4 times and mostly do as their cohort does; they are asked about a topic
  that does not occur in their own history, but does in those of their cohort;
- *cold* users are asked about their first document, and have no history at all.

A user answers on several topics with a different tag each, so the documents on the query's topic
tell more than the latest ones. Nothing here knows how any method works: no embedding, no similarity
threshold, no score. Everything is drawn from seeded generators in one order. What is latent goes to
`truth.json`, which readers never open.

Documents carry the LaMP-4 fields (`text` is the question, `title` the answer). A question also carries its
`date`, which LaMP's does not: the only way to know what lay in the past of a user without a history.
"""

import json
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pbr_jax.base.files import written
from pbr_jax.base.types import UserError

SPLITS = ("train", "dev")
_WORDS = tomllib.loads(Path(__file__).with_name("synthetic_words.toml").read_text(encoding="utf-8"))


class Topic(NamedTuple):
    """What can be said about a topic: to see an object with an actor."""

    name: str
    actors: Sequence[str]
    objects: Sequence[str]


TOPICS = tuple(Topic(**table) for table in _WORDS["topics"])

Kind = Literal["regular", "newcomer", "cold"]

_FIRST_DAY = date(2021, 1, 4)
_SPAN = 1000  # days of writing before the dev questions start
_NEWCOMER_DAY = 850  # newcomers join late, when the cohort's habits can already be read elsewhere
_LEAST_BEFORE = 8  # posts of a regular before a question
_PREFERRED = 5  # topics a cohort prefers
_ON_PREFERRED = 0.9  # share of documents on them
_OWN_HABIT = {"regular": 0.35, "newcomer": 0.1, "cold": 0.1}  # chance to differ from the cohort's habit


@dataclass(frozen=True)
class Style:
    """How an answer is worded, one field a habit."""

    greeting: str
    line: str  # says what is brought, and where
    sign_off: str


_STYLES: dict[str, list[str]] = _WORDS["style"]


class Habits(NamedTuple):
    """The style of a cohort or user, and the tag for each topic."""

    style: Style
    tags: dict[str, str]


class Cohort(NamedTuple):
    topics: tuple[Topic, ...]  # the preferred ones
    habits: Habits


class User(NamedTuple):
    id: int
    kind: Kind
    cohort: int
    habits: Habits


class Post(NamedTuple):
    """A document with its truth: the topic, and the tag that its author chose."""

    record: dict[str, str]
    topic: str
    tag: str


class Question(NamedTuple):
    """A post whose answer is asked, with the number of the author's posts before it."""

    split: str
    post: Post
    before: int


# --- who lives there -------------------------------------------------------------------------------


def _draw_cohort(rng: random.Random, tags: tuple[str, ...]) -> Cohort:
    """A circle of writers: preferred topics, one style, and a different tag for every topic."""
    topics = tuple(rng.sample(TOPICS, _PREFERRED))
    chosen = rng.sample(tags, len(TOPICS))
    return Cohort(topics, Habits(_style(rng), {topic.name: tag for topic, tag in zip(TOPICS, chosen)}))


def _style(rng: random.Random) -> Style:
    return Style(**{name: rng.choice(values) for name, values in _STYLES.items()})


def _draw_kinds(rng: random.Random, users: int, newcomers: float, cold: float) -> list[Kind]:
    """The users' kinds, in random order so that kind and cohort are independent."""
    least = 1 if users >= 10 else 0
    num_newcomers = max(round(newcomers * users), least if newcomers else 0)
    num_cold = min(max(round(cold * users), least if cold else 0), users - num_newcomers)
    regular, newcomer, cold_start = get_args(Kind)
    kinds = [newcomer] * num_newcomers + [cold_start] * num_cold
    kinds += [regular] * (users - len(kinds))
    rng.shuffle(kinds)
    return kinds


def _draw_user(
    rng: random.Random, index: int, kind: Kind, cohort: int, circles: list[Cohort], tags: tuple[str, ...]
) -> User:
    """A member of the cohort who keeps each of its habits, or has an own one instead."""
    inherited = circles[cohort].habits
    own = _OWN_HABIT[kind]

    def keep(habit: str, others: Sequence[str]) -> str:
        return rng.choice(others) if rng.random() < own else habit

    style = Style(**{name: keep(getattr(inherited.style, name), values) for name, values in _STYLES.items()})
    return User(index, kind, cohort, Habits(style, {n: keep(tag, tags) for n, tag in inherited.tags.items()}))


# --- what they write -------------------------------------------------------------------------------


@dataclass
class Writer:
    """One user's life: dated posts, some of which become questions."""

    rng: random.Random
    user: User
    cohort: Cohort
    tags: tuple[str, ...]
    follow: float
    told: set[tuple[str, str]] = field(default_factory=set)  # an answer given twice would be in a history

    def life(self) -> tuple[list[Post], list[Question]]:
        """All posts in the order of their dates, and the questions among them."""
        if self.user.kind == "regular":
            topics, splits = self._regular()
        else:
            topics, splits = self._late()
        num_dev = sum(split == "dev" for split in splits.values())
        days = self._days(len(topics) - num_dev, num_dev)
        posts = [self._post(index, topic, day) for index, (topic, day) in enumerate(zip(topics, days))]
        return posts, [Question(split, posts[index], index) for index, split in splits.items()]

    def _regular(self) -> tuple[list[Topic], dict[int, str]]:
        """A long history; every question's topic occurred at least twice before it."""
        length = self.rng.randint(12, 40)
        topics = [self._topic() for _ in range(length)]
        while not _repeated(topics[:_LEAST_BEFORE]):
            topics = [self._topic() for _ in range(length)]
        train = self.rng.sample(range(max(_LEAST_BEFORE, length // 2), length), self.rng.randint(1, 2))
        splits: dict[int, str] = {}
        for at in sorted(train):
            topics[at] = self.rng.choice(_repeated(topics[:at]))
            splits[at] = "train"
        for at in range(length, length + self.rng.randint(1, 2)):
            topics.append(self.rng.choice(_repeated(topics)))
            splits[at] = "dev"
        return topics, splits

    def _late(self) -> tuple[list[Topic], dict[int, str]]:
        """A short or empty history; every question's topic is new to it, and dear to the cohort."""
        length = 0 if self.user.kind == "cold" else self.rng.randint(1, 4)
        last, train = self.rng.sample(self.cohort.topics, 2)
        topics = [self._topic(avoid=(last, train)) for _ in range(max(length - 1, 0))]
        splits: dict[int, str] = {}
        if length:
            splits[len(topics)] = "train"
            topics.append(train)
        splits[len(topics)] = "dev"
        return [*topics, last], splits

    def _topic(self, avoid: tuple[Topic, ...] = ()) -> Topic:
        pool = self.cohort.topics if self.rng.random() < _ON_PREFERRED else TOPICS
        return self.rng.choice([topic for topic in pool if topic not in avoid])

    def _days(self, num_before: int, num_dev: int) -> list[int]:
        """Increasing days: the history before day _SPAN, the dev questions after it."""
        start = 0 if self.user.kind == "regular" else _NEWCOMER_DAY
        history = sorted(self.rng.sample(range(start, _SPAN), num_before))
        return history + sorted(self.rng.sample(range(_SPAN, _SPAN + 60), num_dev))

    def _post(self, index: int, topic: Topic, day: int) -> Post:
        identity = f"{self.user.id}-{index}"
        when = str(_FIRST_DAY + timedelta(days=day))
        tag = self._follows(self.user.habits.tags[topic.name], self.tags)
        text, place = self._story(topic, tag)
        record = {"id": identity, "text": text, "title": self._answer(place, tag), "date": when}
        return Post(record, topic.name, tag)

    def _follows(self, habit: str, others: Sequence[str]) -> str:
        return habit if self.rng.random() < self.follow else self.rng.choice(others)

    def _story(self, topic: Topic, tag: str) -> tuple[str, str]:
        """The text (about 20 words), and the place that it names: a new one for the tag."""
        choice = self.rng.choice
        place = choice(
            [place for place in _WORDS["places"] if (place, tag) not in self.told] or _WORDS["places"]
        )
        self.told.add((place, tag))
        actor, thing = choice(topic.actors), choice(topic.objects)
        return f"What will you bring to see {thing} with {actor} in {place}?", place

    def _answer(self, place: str, tag: str) -> str:
        """What is brought, in the user's words, each habit of which may slip."""
        habits = self.user.habits.style
        style = Style(**{n: self._follows(getattr(habits, n), values) for n, values in _STYLES.items()})
        return f"{style.greeting} {style.line.format(tag=tag, place=place)} {style.sign_off}"


def _repeated(topics: list[Topic]) -> list[Topic]:
    """The topics that occur at least twice, each as often as it occurs."""
    return [topic for topic in topics if topics.count(topic) >= 2]


# --- files -----------------------------------------------------------------------------------------


def _world(circles: list[Cohort]) -> list[dict[str, Any]]:
    return [{"topics": [topic.name for topic in c.topics], **_habits(c.habits)} for c in circles]


def _habits(habits: Habits) -> dict[str, Any]:
    return {"style": asdict(habits.style), "tags": habits.tags}


@dataclass
class _List:
    """A JSON list in the making, a record a line."""

    head: str
    tail: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        lines = (f"\n{json.dumps(line, ensure_ascii=False)}" for line in self.lines)
        return f"{self.head}{','.join(lines)}\n{self.tail}\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if (path := folder / name).exists() and path.read_bytes() != text.encode():
                raise UserError(
                    f"{path}: found a file with other content, wanted to write synthetic data; "
                    "choose another folder or remove the file"
                )
        for name, text in files.items():
            with written(folder / name, 0o644) as file:
                file.write(text)
    except OSError as error:
        raise UserError(f"{folder}: cannot write synthetic data ({error}); choose another folder") from error


def _question(user: User, question: Question, profile: list[Post]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A question and its output."""
    record = question.post.record
    asked = {
        "id": record["id"],
        "user_id": user.id,
        "input": f"Repeat what this person always says. article: {record['text']}",
        "date": record["date"],
        "profile": [post.record for post in profile],
    }
    return asked, {"id": record["id"], "output": record["title"]}


def _truth(user: User, posts: list[Post], questions: list[Question]) -> dict[str, Any]:
    """What is latent about a user: for tests and analyses only."""
    documents = {
        post.record["id"]: {"topic": post.topic, "tag": post.tag, "date": post.record["date"]}
        for post in posts
    }
    return {
        "user_id": user.id,
        "kind": user.kind,
        "cohort": user.cohort,
        **_habits(user.habits),
        "documents": documents,
        "questions": {question.post.record["id"]: question.split for question in questions},
    }


def generate(
    folder: Path,
    *,
    seed: int = 0,
    users: int = 60,
    cohorts: int = 6,
    follow: float = 0.88,
    newcomers: float = 0.4,
    cold: float = 0.05,
) -> None:
    """Write `{train,dev}_{questions,outputs}.json` and `truth.json` into `folder`, deterministic per seed.

    `follow` is the chance that a document follows a habit; `newcomers` and `cold` are shares of the
    users (at least one of each from 10 users on). Raises UserError for values outside their ranges, and where
    one of these files exists already with other content: nothing is overwritten.
    """
    _check(users=users, cohorts=cohorts, follow=follow, newcomers=newcomers, cold=cold)
    tags = tuple(_WORDS["tags"])
    circles = [_draw_cohort(random.Random(f"{seed}/cohort/{index}"), tags) for index in range(cohorts)]
    kinds = _draw_kinds(random.Random(f"{seed}/kinds"), users, newcomers, cold)
    world = {"seed": seed, "task": "lamp_4", "follow": follow, "tags": list(tags), "cohorts": _world(circles)}
    files = {"truth": _List(json.dumps({"world": world})[:-1] + ', "users": [', "]}")}
    for split in SPLITS:
        files |= {
            f"{split}_questions": _List("[", "]"),
            f"{split}_outputs": _List('{"task": "LaMP_4", "golds": [', "]}"),
        }
    for index, kind in enumerate(kinds):
        rng = random.Random(f"{seed}/user/{index}")
        user = _draw_user(rng, index, kind, index % cohorts, circles, tags)
        posts, questions = Writer(rng, user, circles[user.cohort], tags, follow).life()
        for question in questions:
            asked, output = _question(user, question, posts[: question.before])
            files[f"{question.split}_questions"].lines.append(asked)
            files[f"{question.split}_outputs"].lines.append(output)
        files["truth"].lines.append(_truth(user, posts, questions))
    _write(folder, {f"{name}.json": made.text() for name, made in files.items()})


def _check(*, users: int, cohorts: int, **shares: float) -> None:
    """UserError for arguments that describe no world."""
    for name, value in (("users", users), ("cohorts", cohorts)):
        if value < 1:
            raise UserError(f"synthetic data: {name} is {value}; wanted 1 or more")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise UserError(f"synthetic data: {name} is {value}; wanted a share between 0 and 1")
    if shares["newcomers"] + shares["cold"] > 1:
        raise UserError("synthetic data: newcomers and cold add up to more than 1; lower one of them")
