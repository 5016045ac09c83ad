"""A small search with labels, all of it written for this test: ten questions to thirty notes as one person keeps them.

Every question has one or two notes that answer it and at least one that shares its subject and does not. Questions and
answers share few words, so that counting words would not do.
"""

from __future__ import annotations

NOTES = {
    "ferry times": "Boats to the island run hourly from seven until ten at night; the last one back is at eleven.",
    "ferry ticket": "We paid 18 euros each for the crossing and the children travelled free.",
    "harbour walk": "The path around the harbour takes forty minutes and has benches facing the water.",
    "sourdough": "Feed the starter with equal weights of flour and water, and wait until it doubles before mixing.",
    "pancakes": "Two eggs, a cup of milk and a cup of flour make eight thin pancakes.",
    "bread knife": "Bought a serrated knife for crusty loaves; the straight blade only crushed them.",
    "dentist": "The dentist wants to see me again in March to replace the old filling at the back.",
    "tooth": "Cold water makes the molar on the left side ache since last weekend.",
    "eye test": "New glasses: the left lens is half a dioptre stronger than before.",
    "router": "If the internet drops, unplug the router for thirty seconds; the lights must turn green again.",
    "printer": "The printer only takes jobs over the cable since the last update of its firmware.",
    "backup": "Photos are copied to the disk in the drawer every Sunday; the second copy is at my sister's.",
    "passport": "My passport expires on 4 June, and the office needs six weeks for a new one.",
    "visa": "No visa is needed for stays under ninety days, but the onward ticket must be shown.",
    "luggage": "Hand luggage may weigh eight kilos on that airline, and they do weigh it.",
    "tomatoes": "The tomato leaves curl and turn yellow from below; too much watering, said the neighbour.",
    "roses": "Cut the roses back in late winter, just above a bud that faces outwards.",
    "compost": "Egg shells and coffee grounds go on the heap, cooked food does not, because of the rats.",
    "bike brakes": "The rear brake of the bicycle squeals in the rain; the pads are worn down to the metal.",
    "bike lights": "The bike lamps charge by cable and last about six hours.",
    "car service": "The car is due for an oil change at 120,000 kilometres.",
    "lease": "The landlord must get notice in writing three months before we move out.",
    "rent": "Rent goes up by 2.5 percent from January, the letter says.",
    "heating": "The radiator in the bedroom stays cold until its valve is turned all the way and air is let out.",
    "garbage collector": "Python frees a cycle only when its collector runs: the reference counts never reach zero.",
    "refuse": "The bins are emptied on Tuesdays, paper every second week.",
    "unit tests": "The build fails because two tests write to the same temporary file when they run side by side.",
    "birthday": "Ana turns forty on the ninth; she said she would rather have a concert ticket than things.",
    "wedding": "Their wedding is in the old mill, and guests are asked to come in flat shoes.",
    "choir": "Rehearsals moved to Thursday evening because the hall is let on Wednesdays.",
}

QUESTIONS = {
    "what does it cost to sail across, and how late can we return?": ("ferry times", "ferry ticket"),
    "how do I know that my leaven is ready to bake with?": ("sourdough",),
    "why does my mouth hurt when I drink something icy?": ("tooth",),
    "the wifi has stopped working, what should I try?": ("router",),
    "which papers do we need to go abroad?": ("passport", "visa"),
    "what is wrong with the plants that go yellow?": ("tomatoes",),
    "my bicycle makes a shrieking noise when I stop on wet roads": ("bike brakes",),
    "how long in advance must we tell the owner that we are leaving the flat?": ("lease",),
    "memory is not released for objects that refer to each other": ("garbage collector",),
    "what could we give our friend for her party?": ("birthday",),
}
