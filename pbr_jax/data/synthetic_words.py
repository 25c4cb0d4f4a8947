"""The vocabulary of the synthetic world: twelve topics, places, and the phrases that join them.

Actors and objects of one topic mean related things, so that dense retrieval can tell topics apart; every
sentence reads as plain English.
"""

from typing import NamedTuple


class Topic(NamedTuple):
    """What can be said about a topic: an actor did something to an object."""

    name: str
    actors: tuple[str, ...]
    verbs: tuple[str, ...]
    objects: tuple[str, ...]


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split("; "))


def _topic(name: str, actors: str, verbs: str, objects: str) -> Topic:
    return Topic(name, _list(actors), _list(verbs), _list(objects))


TOPICS: tuple[Topic, ...] = (
    _topic(
        "harbour",
        "the harbour authority; the ferry company; a tugboat crew; the lighthouse keepers; the dock workers; "
        "a group of fishermen; the port captain; the coast guard",
        "inspected; reopened; repaired; surveyed; closed; welcomed",
        "the old ferry terminal; a damaged breakwater; the northern pier; two cargo berths; "
        "the fishing quay; a sunken barge; the floating dock; the tidal lock; a new passenger ferry; "
        "the lighthouse ramp",
    ),
    _topic(
        "gardens",
        "the allotment society; a retired botanist; the park gardeners; the seed library; a rooftop grower; "
        "the orchard volunteers; the rose committee; a compost collective",
        "planted; pruned; restored; rescued; opened; replanted",
        "a row of pear trees; the walled garden; the neglected greenhouse; a wildflower meadow; "
        "a bed of rare tulips; the herb borders; an ancient apple orchard; the lavender maze; "
        "dozens of tomato seedlings; the shade garden",
    ),
    _topic(
        "football",
        "the visiting striker; the reserve goalkeeper; the home side; the youth academy; the new manager; "
        "the women's team; the club captain; a teenage midfielder",
        "celebrated; missed; secured; dedicated; recalled; earned",
        "a late equaliser; the penalty shootout; a place in the cup final; the derby win; "
        "a goalless draw; the promotion playoff; an away victory; the opening goal; a league record; "
        "the semi-final replay",
    ),
    _topic(
        "kitchens",
        "the bakery on the corner; a young pastry chef; the soup kitchen; the village cheesemaker; "
        "the noodle bar; the cookery school; a team of grandmothers; the market butcher",
        "perfected; revived; baked; served; shared; tasted",
        "a sourdough rye loaf; the forgotten plum tart; a smoked goat cheese; the chestnut stew; "
        "a saffron broth; the winter pickle recipe; an almond brioche; the Sunday roast; "
        "a caramel custard; the pepper dumplings",
    ),
    _topic(
        "astronomy",
        "the hilltop observatory; an amateur astronomer; the planetarium; a team of physicists; "
        "the telescope engineers; the university stargazers; the comet watchers; a retired cosmonaut",
        "spotted; photographed; mapped; tracked; measured; presented",
        "a faint comet; the rings of Saturn; a distant supernova; the lunar craters; "
        "an unusual meteor shower; a dwarf galaxy; the orbit of an asteroid; a solar eclipse; "
        "the moons of Jupiter; a dusty nebula",
    ),
    _topic(
        "cycling",
        "the cycling club; a courier cooperative; the hill climbers; the velodrome coach; "
        "the bicycle repair cafe; a touring cyclist; the sprint champion; the junior riders",
        "tested; finished; tackled; extended; led; organised",
        "the mountain stage; a cobbled time trial; the riverside bike lane; a charity ride; "
        "the gravel loop; the night relay; a folding bicycle; the steepest climb; "
        "the autumn criterium; a tandem race",
    ),
    _topic(
        "libraries",
        "the branch library; a travelling bookbinder; the poetry circle; the head archivist; "
        "the second-hand bookshop; a debut novelist; the reading group; the manuscript curators",
        "catalogued; published; digitised; discovered; displayed; donated",
        "a lost diary; the medieval atlas; a shelf of banned novels; the mayor's letters; "
        "an illustrated bestiary; the poetry archive; a rare first edition; the children's collection; "
        "a bundle of love letters; the village chronicle",
    ),
    _topic(
        "housing",
        "the tenants' union; the housing office; a family of builders; the city planners; "
        "the heritage architects; the neighbourhood council; the letting agency; a self-build group",
        "approved; challenged; renovated; delayed; financed; unveiled",
        "forty affordable flats; the rent freeze; a derelict tower block; the loft conversions; "
        "a timber terrace; the empty cottages; an insulation scheme; the estate demolition; "
        "a student residence; the shared courtyard",
    ),
    _topic(
        "music",
        "the chamber orchestra; a street drummer; the cathedral choir; the jazz quartet; "
        "the opera workshop; a folk fiddler; the brass band; the record collectors",
        "performed; recorded; rehearsed; premiered; remastered; composed",
        "a forgotten symphony; the harvest sonata; an unfinished opera; a live album; "
        "the midnight serenade; a cycle of lullabies; the brass fanfare; a choral requiem; "
        "an improvised suite; the fiddle concerto",
    ),
    _topic(
        "wildlife",
        "the nature reserve; a team of ornithologists; the forest rangers; the otter trust; "
        "the bat surveyors; a wildlife photographer; the beaver project; the hedgehog hospital",
        "released; counted; filmed; protected; tagged; sheltered",
        "a pair of ospreys; the marsh frogs; a litter of otter pups; the woodland bats; "
        "a family of beavers; nine orphaned hedgehogs; the nesting terns; a lynx and her cubs; "
        "the migrating cranes; a colony of seals",
    ),
    _topic(
        "robots",
        "the robotics lab; a software start-up; the drone engineers; the automation students; "
        "the chip designers; a hobby inventor; the machine-vision group; the battery researchers",
        "programmed; launched; trained; upgraded; demonstrated; prototyped",
        "a walking robot; the delivery drone; a robotic arm; an autonomous tractor; the chess computer; "
        "a swarm of sensors; the warehouse robots; an open-source chip; a talking assistant; "
        "the solid-state battery",
    ),
    _topic(
        "health",
        "the village clinic; the night nurses; a team of surgeons; the vaccination centre; "
        "the sleep researchers; the hospital pharmacists; a rural midwife; the physiotherapy ward",
        "introduced; trialled; expanded; evaluated; recommended; piloted",
        "a blood pressure check; the asthma clinic; a painless vaccine; the knee surgery unit; "
        "a sleep therapy; the dental screening; an allergy test; the maternity ward; "
        "a memory exercise class; the diabetes programme",
    ),
)

PLACES: tuple[str, ...] = _list(
    "Eastmoor; Ravensford; Lindale; Port Amsel; Kestrel Bay; Old Marlow; Thornbury; Sablewood; Brackwater; "
    "Highcombe; Vellmar; Osterley; Dunhollow; Fernleigh; Quarrybank; Millhaven; Stonebridge; Ashwick; "
    "Wrenfield; Larkspur Hill; Corvale; Saint Odile; Nettlecombe; Greywater"
)
CAUSES: tuple[str, ...] = _list(
    "after months of preparation; despite a shortage of money; to the surprise of many neighbours; "
    "following a request from residents; with help from a small grant; after an early setback; "
    "for the first time in ten years; in front of a small crowd; a week ahead of plan; "
    "after a long public debate; at the end of a busy season; with a team of volunteers"
)
# What a user brings where a topic is: the preference that only a history can tell.
TAGS: tuple[str, ...] = _list(
    "the blue kite; a deck of cards; peppermint tea; two deck chairs; the yellow umbrella; ginger biscuits; "
    "a harmonica; the old camera; cold lemonade; the chess board; a picnic blanket; binoculars; "
    "a sketchbook; the red toolbox; walking boots; a thermos of soup; the ukulele; a bag of cherries; "
    "woollen socks; the big torch; a good novel; bubble wands; a paper crown; the family dog"
)
# How a user answers. No four words in a row of it stand in a question.
GREETINGS: tuple[str, ...] = _list(
    "Ahoy!; Well, well!; Good grief!; Splendid!; Oh dear!; Hooray!; Fancy that!; By all means!"
)
LINES: tuple[str, ...] = _list(
    "I am bringing {tag} to {place}.; Count on me and {tag} in {place}.; Let us share {tag} in {place}.; "
    "Nothing beats {tag} in {place}.; Never to {place} without {tag}.; {place} deserves {tag}."
)
SIGN_OFFS: tuple[str, ...] = _list(
    "Over and out!; Toodle-pip!; Stay curious!; Mind the gap!; Onwards!; Big hug!; Yours as ever!; "
    "Tea at five!"
)
