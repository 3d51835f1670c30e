"""The words of the catalogue: kinds of products with their prices, attributes and options."""

from dataclasses import dataclass

COLOURS = (
    "black", "white", "red", "blue", "green", "grey", "navy", "beige", "yellow", "purple", "orange",
    "pink",
)  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    "colour": COLOURS,
    "size": ("XS", "S", "M", "L", "XL", "XXL"),
    "shoe size": ("36", "37", "38", "39", "40", "41", "42", "43", "44", "45"),
    "pack": ("1 pack", "2 pack", "4 pack", "6 pack"),
    "capacity": ("0.5 l", "1 l", "1.5 l", "2 l"),
    "storage": ("64 GB", "128 GB", "256 GB", "512 GB"),
    "width": ("120 cm", "140 cm", "160 cm", "200 cm"),
    "scent": ("unscented", "lavender", "citrus", "mint"),
}
"""Values of each kind of option, from the cheapest up; colours cost the same."""
BRANDS = (
    "Alderway", "Brightmoor", "Calder", "Dunmere", "Everlake", "Farrow Lane", "Glenhart", "Hollis",
    "Ironwood", "Junip", "Kestrel", "Larkfield", "Marlow", "Nordhaven", "Orchard Row", "Pinecrest",
    "Quillon", "Ridgeback", "Silverbay", "Thornbury", "Umbra North", "Vanterra", "Westmark",
    "Yarrow",
)  # fmt: skip
SERIES = (
    "Ascent", "Breeze", "Classic", "Drift", "Echo", "Field", "Grove", "Harbour", "Indigo",
    "Journey", "Lumen", "Meadow", "Nova", "Origin", "Pulse", "Ranger", "Summit", "Terra", "Urban",
    "Vista",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A type of product: its prices, attributes and options."""

    name: str
    category: str
    lowest: int
    """Lowest price [dollars]."""
    highest: int
    """Highest price [dollars]."""
    attributes: tuple[str, ...]
    options: tuple[str, ...]


def _kind(line: str) -> ProductKind:
    name, category, prices, attributes, options = (part.strip() for part in line.split("|"))
    lowest, highest = map(int, prices.split("-"))
    return ProductKind(
        name, category, lowest, highest, tuple(attributes.split(", ")), tuple(options.split(", "))
    )


_LINES = """
jacket | clothing | 35-180 | waterproof, windproof, insulated, lightweight, hooded, recycled, packable | colour, size
sweater | clothing | 25-120 | merino, cotton, knitted, ribbed, soft, machine washable, warm | colour, size
t-shirt | clothing | 9-40 | organic, cotton, slim fit, breathable, soft, quick drying, striped | colour, size
trousers | clothing | 22-95 | stretch, linen, slim fit, cargo, water repellent, pleated, casual | colour, size
dress | clothing | 28-140 | linen, sleeveless, floral, casual, formal, pleated, machine washable | colour, size
pyjamas | clothing | 18-70 | cotton, flannel, soft, striped, warm, organic, loose fit | colour, size
hiking boots | shoes | 60-220 | waterproof, leather, lightweight, insulated, wide fit, high cut, vegan | colour, shoe size
running shoes | shoes | 45-190 | breathable, cushioned, lightweight, reflective, wide fit, vegan, recycled | colour, shoe size
sandals | shoes | 15-85 | leather, vegan, adjustable, cushioned, casual, waterproof, open toe | colour, shoe size
slippers | shoes | 12-60 | wool, soft, washable, warm, closed toe, vegan, memory foam | colour, shoe size
loafers | shoes | 40-160 | leather, suede, formal, cushioned, handmade, slip resistant, casual | colour, shoe size
kettle | kitchen | 20-110 | electric, cordless, stainless steel, quiet, insulated, fast boiling, gooseneck | colour, capacity
frying pan | kitchen | 18-95 | nonstick, cast iron, induction ready, oven safe, lightweight, dishwasher safe, ceramic | colour, pack
water bottle | kitchen | 8-45 | insulated, leakproof, stainless steel, dishwasher safe, lightweight, plastic free, wide mouth | colour, capacity
lunch box | kitchen | 9-40 | leakproof, microwave safe, stainless steel, stackable, plastic free, insulated, compact | colour, pack
coffee mug | kitchen | 6-30 | ceramic, insulated, handmade, dishwasher safe, microwave safe, stackable, leakproof | colour, pack
chopping board | kitchen | 10-60 | bamboo, dishwasher safe, reversible, nonslip, compact, handmade, juice groove | size, pack
curtains | home | 20-120 | blackout, linen, thermal, machine washable, soundproof, striped, sheer | colour, width
duvet cover | home | 25-130 | cotton, linen, soft, machine washable, organic, wrinkle free, buttoned | colour, width
desk lamp | home | 18-110 | dimmable, adjustable, cordless, compact, warm light, rechargeable, foldable | colour, pack
cushion | home | 8-45 | velvet, linen, washable, memory foam, outdoor, embroidered, soft | colour, pack
bath towel | home | 9-50 | organic, quick drying, soft, bamboo, absorbent, waffle, machine washable | colour, pack
headphones | electronics | 25-320 | wireless, noise cancelling, foldable, lightweight, over ear, sweatproof, long battery | colour, pack
phone case | electronics | 8-45 | shockproof, slim fit, leather, recycled, magnetic, waterproof, transparent | colour, pack
memory card | electronics | 10-140 | fast, waterproof, shockproof, encrypted, heat resistant, compact, long warranty | storage, pack
speaker | electronics | 25-260 | wireless, waterproof, portable, rechargeable, stereo, compact, long battery | colour, pack
keyboard | electronics | 20-180 | mechanical, wireless, quiet, backlit, compact, ergonomic, rechargeable | colour, pack
yoga mat | sport | 15-95 | nonslip, thick, recycled, foldable, plastic free, extra long, washable | colour, width
backpack | sport | 25-190 | waterproof, lightweight, laptop, recycled, foldable, padded, roll top | colour, size
tent | sport | 60-420 | waterproof, lightweight, four season, freestanding, compact, windproof, quick setup | colour, width
cycling gloves | sport | 10-55 | padded, breathable, reflective, windproof, fingerless, touchscreen, washable | colour, size
dumbbells | sport | 15-120 | adjustable, nonslip, cast iron, neoprene, hexagonal, compact, quiet | colour, pack
shampoo | beauty | 5-32 | vegan, sulfate free, moisturizing, organic, anti dandruff, gentle, plastic free | scent, pack
hand cream | beauty | 4-28 | vegan, fast absorbing, moisturizing, organic, gentle, repairing, travel size | scent, pack
soap bar | beauty | 3-20 | handmade, vegan, exfoliating, plastic free, moisturizing, gentle, organic | scent, pack
candle | beauty | 6-40 | soy, handmade, long burning, vegan, clean burning, refillable, decorative | scent, pack
garden hose | garden | 18-90 | kink free, expandable, lightweight, leakproof, flexible, drinking safe, reinforced | colour, pack
plant pot | garden | 7-60 | ceramic, self watering, outdoor, handmade, frost resistant, recycled, stackable | colour, size
watering can | garden | 10-50 | galvanized, long spout, lightweight, rustproof, indoor, recycled, handmade | colour, capacity
pruning shears | garden | 10-70 | ergonomic, rustproof, stainless steel, locking, left handed, lightweight, nonslip | colour, pack
"""  # noqa: E501  a table
KINDS = tuple(_kind(line) for line in _LINES.strip().splitlines())
