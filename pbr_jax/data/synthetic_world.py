"""Who lives in the synthetic world, and what they write; `synthetic` describes it and puts it on disk.

Everything is drawn from the given generators alone, in one order: the same generators draw the same world.
"""

import random
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Literal, NamedTuple, get_args

from pbr_jax.data import synthetic_words
from pbr_jax.data.synthetic_words import TOPICS, Topic

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


_STYLES: dict[str, tuple[str, ...]] = {
    "greeting": synthetic_words.GREETINGS,
    "line": synthetic_words.LINES,
    "sign_off": synthetic_words.SIGN_OFFS,
}


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


def draw_cohort(rng: random.Random, tags: tuple[str, ...]) -> Cohort:
    """A circle of writers: preferred topics, one style, and a different tag for every topic."""
    topics = tuple(rng.sample(TOPICS, _PREFERRED))
    chosen = rng.sample(tags, len(TOPICS))
    return Cohort(topics, Habits(_style(rng), {topic.name: tag for topic, tag in zip(TOPICS, chosen)}))


def _style(rng: random.Random) -> Style:
    return Style(**{name: rng.choice(values) for name, values in _STYLES.items()})


def draw_kinds(rng: random.Random, users: int, newcomers: float, cold: float) -> list[Kind]:
    """The users' kinds, in random order so that kind and cohort are independent."""
    least = 1 if users >= 10 else 0
    num_newcomers = max(round(newcomers * users), least if newcomers else 0)
    num_cold = min(max(round(cold * users), least if cold else 0), users - num_newcomers)
    regular, newcomer, cold_start = get_args(Kind)
    kinds = [newcomer] * num_newcomers + [cold_start] * num_cold
    kinds += [regular] * (users - len(kinds))
    rng.shuffle(kinds)
    return kinds


def draw_user(
    rng: random.Random, index: int, kind: Kind, cohort: int, circles: list[Cohort], tags: tuple[str, ...]
) -> User:
    """A member of the cohort who keeps each of its habits, or has an own one instead."""
    inherited = circles[cohort].habits
    own = _OWN_HABIT[kind]

    def keep(habit: str, others: tuple[str, ...]) -> str:
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
    task: str
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
        if self.task == "lamp_2":
            record = {"id": identity, "description": text, "tag": tag, "date": when}
        else:
            record = {"id": identity, "text": text, "title": self._answer(place, tag), "date": when}
        return Post(record, topic.name, tag)

    def _follows(self, habit: str, others: tuple[str, ...]) -> str:
        return habit if self.rng.random() < self.follow else self.rng.choice(others)

    def _story(self, topic: Topic, tag: str) -> tuple[str, str]:
        """The text (about 20 words), and the place that it names: a new one for the tag."""
        choice = self.rng.choice
        place = choice(
            [place for place in synthetic_words.PLACES if (place, tag) not in self.told]
            or synthetic_words.PLACES
        )
        self.told.add((place, tag))
        actor, thing = choice(topic.actors), choice(topic.objects)
        if self.task == "lamp_2":
            verb, cause = choice(topic.verbs), choice(synthetic_words.CAUSES)
            return f"A film in which {actor} {verb} {thing} in {place} {cause}.", place
        return f"What will you bring to see {thing} with {actor} in {place}?", place

    def _answer(self, place: str, tag: str) -> str:
        """What is brought, in the user's words, each habit of which may slip."""
        habits = self.user.habits.style
        style = Style(**{n: self._follows(getattr(habits, n), values) for n, values in _STYLES.items()})
        return f"{style.greeting} {style.line.format(tag=tag, place=place)} {style.sign_off}"


def _repeated(topics: list[Topic]) -> list[Topic]:
    """The topics that occur at least twice, each as often as it occurs."""
    return [topic for topic in topics if topics.count(topic) >= 2]
