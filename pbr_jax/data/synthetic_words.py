"""The vocabulary of the synthetic world: twelve topics, places, and the phrases that join them.

Words of one topic recur across its actors, objects and details, so that lexical and dense retrieval
can both tell topics apart; every sentence reads as plain English.
"""

from typing import NamedTuple


class Topic(NamedTuple):
    """What can be said about a topic: an actor did something to an object; a detail follows."""

    name: str
    actors: tuple[str, ...]
    verbs: tuple[str, ...]
    objects: tuple[str, ...]
    details: tuple[str, ...]


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split("; "))


def _topic(name: str, actors: str, verbs: str, objects: str, details: str) -> Topic:
    return Topic(name, _list(actors), _list(verbs), _list(objects), _list(details))


def bare(phrase: str) -> str:
    """A phrase without its leading article, as headlines have it."""
    first, _, rest = phrase.partition(" ")
    return rest if first in ("a", "an", "the") else phrase


def capital(phrase: str) -> str:
    """A phrase that begins with a capital letter."""
    return phrase[0].upper() + phrase[1:]


TOPICS: tuple[Topic, ...] = (
    _topic(
        "harbour",
        "the harbour authority; the ferry company; a tugboat crew; the lighthouse keepers; the dock workers; "
        "a group of fishermen; the port captain; the coast guard",
        "inspected; reopened; repaired; surveyed; closed; welcomed",
        "the old ferry terminal; a damaged breakwater; the northern pier; two cargo berths; "
        "the fishing quay; a sunken barge; the floating dock; the tidal lock; a new passenger ferry; "
        "the lighthouse ramp",
        "Low tides held the morning ferry at the pier for an hour; "
        "Two trawlers waited outside the harbour wall until the swell dropped; "
        "Divers checked the moorings and the anchor chains below the quay; "
        "Cargo ships were sent to the outer berths while the dock stayed shut; "
        "Gulls circled as the fishing boats landed their catch; "
        "The tide tables pinned to the lighthouse door promise calmer sailing; "
        "Sailors say that the channel has silted up since the spring storms; "
        "Passengers with tickets for the evening ferry can board at the cargo quay",
    ),
    _topic(
        "gardens",
        "the allotment society; a retired botanist; the park gardeners; the seed library; a rooftop grower; "
        "the orchard volunteers; the rose committee; a compost collective",
        "planted; pruned; restored; rescued; opened; replanted",
        "a row of pear trees; the walled garden; the neglected greenhouse; a wildflower meadow; "
        "a bed of rare tulips; the herb borders; an ancient apple orchard; the lavender maze; "
        "dozens of tomato seedlings; the shade garden",
        "Slugs had eaten half of the lettuce and most of the dahlias; "
        "Fresh compost and a week of rain brought the seedlings on; "
        "Visitors may take home cuttings, bulbs and a packet of seeds; "
        "The soil had turned to clay under the old greenhouse; "
        "Bees returned to the lavender within days of the planting; "
        "A late frost had blackened the blossom on the apple trees; "
        "Pruning shears, gloves and watering cans are shared from one shed; "
        "Roses and foxgloves now climb the south wall of the garden",
    ),
    _topic(
        "football",
        "the visiting striker; the reserve goalkeeper; the home side; the youth academy; the new manager; "
        "the women's team; the club captain; a teenage midfielder",
        "celebrated; missed; secured; dedicated; recalled; earned",
        "a late equaliser; the penalty shootout; a place in the cup final; the derby win; "
        "a goalless draw; the promotion playoff; an away victory; the opening goal; a league record; "
        "the semi-final replay",
        "The referee added six minutes and booked two defenders; "
        "A header from the corner had struck the crossbar before half time; "
        "Supporters sang behind the goal until the stadium lights went out; "
        "The back four held firm against a long spell of pressure; "
        "Their winger limped off after a heavy tackle near the touchline; "
        "Three points lift the club out of the relegation places; "
        "The striker had not scored in the league since the winter break; "
        "Tickets for the next match sold out before the final whistle",
    ),
    _topic(
        "kitchens",
        "the bakery on the corner; a young pastry chef; the soup kitchen; the village cheesemaker; "
        "the noodle bar; the cookery school; a team of grandmothers; the market butcher",
        "perfected; revived; baked; served; shared; tasted",
        "a sourdough rye loaf; the forgotten plum tart; a smoked goat cheese; the chestnut stew; "
        "a saffron broth; the winter pickle recipe; an almond brioche; the Sunday roast; "
        "a caramel custard; the pepper dumplings",
        "The dough rests overnight and goes into a very hot oven; "
        "Butter, brown sugar and a pinch of salt make the crust; "
        "Customers queued for a second helping and the recipe; "
        "The secret, cooks say, is slow heat and a heavy pan; "
        "Fresh thyme and garlic are added when the onions turn golden; "
        "Every plate was wiped clean before the dessert arrived; "
        "Local flour and eggs keep the price of a slice low; "
        "The tasting menu pairs the dish with cider and pickled fennel",
    ),
    _topic(
        "astronomy",
        "the hilltop observatory; an amateur astronomer; the planetarium; a team of physicists; "
        "the telescope engineers; the university stargazers; the comet watchers; a retired cosmonaut",
        "spotted; photographed; mapped; tracked; measured; presented",
        "a faint comet; the rings of Saturn; a distant supernova; the lunar craters; "
        "an unusual meteor shower; a dwarf galaxy; the orbit of an asteroid; a solar eclipse; "
        "the moons of Jupiter; a dusty nebula",
        "The telescope gathered light for nine hours under a moonless sky; "
        "The mirror was cooled so that the stars stay sharp; "
        "Its orbit brings the object back once in seventy years; "
        "A spectrum of the galaxy shows hydrogen and traces of oxygen; "
        "Clouds had hidden the planet on four nights in a row; "
        "Children lined up at the eyepiece to see the craters; "
        "The signal left its star before the first telescopes were built; "
        "Astronomers elsewhere confirmed the brightness of the meteor trail",
    ),
    _topic(
        "cycling",
        "the cycling club; a courier cooperative; the hill climbers; the velodrome coach; "
        "the bicycle repair cafe; a touring cyclist; the sprint champion; the junior riders",
        "tested; finished; tackled; extended; led; organised",
        "the mountain stage; a cobbled time trial; the riverside bike lane; a charity ride; "
        "the gravel loop; the night relay; a folding bicycle; the steepest climb; "
        "the autumn criterium; a tandem race",
        "Punctures and a broken chain cost the riders four minutes; "
        "The peloton split on the descent after the feed zone; "
        "Helmets, lights and spare tubes were handed out at the start; "
        "A headwind slowed the leaders on the last climb; "
        "Commuters say that the bike lane still ends too soon; "
        "Gears were changed and brakes tightened before the wet stage; "
        "The sprint was decided by the width of a tyre; "
        "Spectators rang cowbells along the final cobbles",
    ),
    _topic(
        "libraries",
        "the branch library; a travelling bookbinder; the poetry circle; the head archivist; "
        "the second-hand bookshop; a debut novelist; the reading group; the manuscript curators",
        "catalogued; published; digitised; discovered; displayed; donated",
        "a lost diary; the medieval atlas; a shelf of banned novels; the mayor's letters; "
        "an illustrated bestiary; the poetry archive; a rare first edition; the children's collection; "
        "a bundle of love letters; the village chronicle",
        "The pages were foxed and the binding held by a single thread; "
        "Borrowers may reserve a copy and keep it for three weeks; "
        "A pencil note in the margin names the first owner; "
        "Chapters were read aloud between the tall shelves; "
        "The reading room stays open late for the exhibition; "
        "Ink and parchment were tested before the scan began; "
        "Readers had searched the catalogue in vain for decades; "
        "Translators are already at work on the opening chapter",
    ),
    _topic(
        "housing",
        "the tenants' union; the housing office; a family of builders; the city planners; "
        "the heritage architects; the neighbourhood council; the letting agency; a self-build group",
        "approved; challenged; renovated; delayed; financed; unveiled",
        "forty affordable flats; the rent freeze; a derelict tower block; the loft conversions; "
        "a timber terrace; the empty cottages; an insulation scheme; the estate demolition; "
        "a student residence; the shared courtyard",
        "Rents on the estate rose by a tenth in one year; "
        "Damp walls and cracked windows were listed in the survey; "
        "Families on the waiting list hope to move in by winter; "
        "The roof needs new tiles, gutters and insulation; "
        "Landlords asked the council to postpone the inspection; "
        "Scaffolding went up around the stairwell and the balconies; "
        "A mortgage lender has agreed to back the first homes; "
        "The plan keeps the brick facade and adds a lift",
    ),
    _topic(
        "music",
        "the chamber orchestra; a street drummer; the cathedral choir; the jazz quartet; "
        "the opera workshop; a folk fiddler; the brass band; the record collectors",
        "performed; recorded; rehearsed; premiered; remastered; composed",
        "a forgotten symphony; the harvest sonata; an unfinished opera; a live album; "
        "the midnight serenade; a cycle of lullabies; the brass fanfare; a choral requiem; "
        "an improvised suite; the fiddle concerto",
        "The cello carries the melody and the horns answer softly; "
        "An encore of two waltzes followed long applause; "
        "The microphones were hung above the choir stalls; "
        "Sheet music for the lost movement turned up in a piano stool; "
        "The drummer counted in and the trumpet took the first solo; "
        "Singers rehearsed the chorus in three languages; "
        "A string snapped in the second movement but nobody stopped; "
        "The tempo slows before the last chord of the concert",
    ),
    _topic(
        "wildlife",
        "the nature reserve; a team of ornithologists; the forest rangers; the otter trust; "
        "the bat surveyors; a wildlife photographer; the beaver project; the hedgehog hospital",
        "released; counted; filmed; protected; tagged; sheltered",
        "a pair of ospreys; the marsh frogs; a litter of otter pups; the woodland bats; "
        "a family of beavers; nine orphaned hedgehogs; the nesting terns; a lynx and her cubs; "
        "the migrating cranes; a colony of seals",
        "The nest was built of reeds and lined with moss; "
        "Tracks in the mud led from the burrow to the stream; "
        "Rangers keep walkers and dogs away during the breeding season; "
        "A hidden camera caught the animals feeding at dusk; "
        "The wetland had been drained and is now flooding again; "
        "Feathers and droppings confirmed that the birds had stayed; "
        "Numbers had fallen since the hedgerows were cut back; "
        "The cubs were weighed, ringed and returned to the forest",
    ),
    _topic(
        "robots",
        "the robotics lab; a software start-up; the drone engineers; the automation students; "
        "the chip designers; a hobby inventor; the machine-vision group; the battery researchers",
        "programmed; launched; trained; upgraded; demonstrated; prototyped",
        "a walking robot; the delivery drone; a robotic arm; an autonomous tractor; the chess computer; "
        "a swarm of sensors; the warehouse robots; an open-source chip; a talking assistant; "
        "the solid-state battery",
        "Cameras and a laser sensor guide the machine around obstacles; "
        "The software learns from its own mistakes overnight; "
        "A firmware update doubled the range of the battery; "
        "Two motors in each joint keep the robot upright; "
        "The code and the circuit diagrams were put online; "
        "Engineers pressed the red button once during the trial; "
        "The algorithm sorts parcels faster than the old conveyor; "
        "A glitch in the sensor had sent the drone in circles",
    ),
    _topic(
        "health",
        "the village clinic; the night nurses; a team of surgeons; the vaccination centre; "
        "the sleep researchers; the hospital pharmacists; a rural midwife; the physiotherapy ward",
        "introduced; trialled; expanded; evaluated; recommended; piloted",
        "a blood pressure check; the asthma clinic; a painless vaccine; the knee surgery unit; "
        "a sleep therapy; the dental screening; an allergy test; the maternity ward; "
        "a memory exercise class; the diabetes programme",
        "Patients reported fewer headaches and better sleep; "
        "Nurses measure pulse and temperature at the first visit; "
        "The waiting list for surgery has shrunk by a third; "
        "A doctor reviews the symptoms and adjusts the dose; "
        "Doses are kept cold and given by a trained pharmacist; "
        "The ward admits patients without a referral on weekdays; "
        "Side effects were mild and passed within a day; "
        "Blood samples are sent to the hospital laboratory at noon",
    ),
)

PLACES: tuple[str, ...] = _list(
    "Eastmoor; Ravensford; Lindale; Port Amsel; Kestrel Bay; Old Marlow; Thornbury; Sablewood; Brackwater; "
    "Highcombe; Vellmar; Osterley; Dunhollow; Fernleigh; Quarrybank; Millhaven; Stonebridge; Ashwick; "
    "Wrenfield; Larkspur Hill; Corvale; Saint Odile; Nettlecombe; Greywater"
)
WEEKDAYS: tuple[str, ...] = _list("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday")
CAUSES: tuple[str, ...] = _list(
    "after months of preparation; despite a shortage of money; to the surprise of many neighbours; "
    "following a request from residents; with help from a small grant; after an early setback; "
    "for the first time in ten years; in front of a small crowd; a week ahead of plan; "
    "after a long public debate; at the end of a busy season; with a team of volunteers"
)
ENDINGS: tuple[str, ...] = _list(
    "A full report is expected next month; Organisers thanked everybody who had lent a hand; "
    "The cost was not disclosed; More dates will be announced soon; "
    "Officials declined to comment on what comes next; Similar efforts are planned elsewhere; "
    "Local people were invited to give their opinion; The work will continue until the autumn"
)
TAGS: tuple[str, ...] = _list(
    "Field Notes; Morning Briefing; First Look; Close Up; Street Diary; Quick Take; Long Read; Inside Story; "
    "Good News; Fact Check; Weekend Special; Behind Doors; Plain Talk; Turning Point; Small Wonders; "
    "Open Question; Slow Burn; Eyewitness Account; Silver Lining; Hard Lesson; Night Shift; Postcard Home; "
    "Second Thoughts; Local Hero"
)
LAYOUTS: tuple[str, ...] = _list(
    "{tag}: {core}; {core} | {tag}; [{tag}] {core}; {core} ({tag}); {tag} - {core}"
)
